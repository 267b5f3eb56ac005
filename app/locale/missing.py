"""Lists the strings that lack a translation: `python -m app.locale.missing [--po]`.

Without `--po` the translations that no source has any more follow, to be taken out of their file.

Templates are searched by Babel. In Python a string is shown to people where it is the template of a
note or of a refusal, the symbols or source of a working, the text of an overhead, or marked by
name. An argument that is no literal is followed to the literals that it may stand for.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po

from app.domain import errors
from app.web.language import LOCALE

ROOT = Path(__file__).resolve().parents[2]
CATALOGUES = LOCALE / "zh_Hans"
_TEMPLATE_METHODS = [("**.html", "jinja2.ext:babel_extract")]
_TEMPLATE_OPTIONS = {"**.html": {"newstyle_gettext": "true", "trimmed": "false"}}
# Where a call of this name has its sentence; those with a parameter `template` are found besides.
_POSITIONS = {"mark": 0, "say": 0, "gettext": 0, "Note": 1} | {
    name: 0
    for name, item in vars(errors).items()
    if isinstance(item, type) and issubclass(item, errors.DomainError)
}
_KEYWORDS = {"Working": ("symbols", "source"), "Overhead": ("text",)}
_MOST_STEPS = 3  # from a name to the literals behind it, through other names

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Scope:
    """What names may stand for within one function, or at the top of a module."""

    body: ast.Module | Function
    outer: _Scope | None = None

    @cached_property
    def values(self) -> dict[str, list[ast.expr]]:
        """Return every expression that is bound to a name here."""
        found: dict[str, list[ast.expr]] = {}
        top = isinstance(self.body, ast.Module)
        for node in self.body.body if top else ast.walk(self.body):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign | ast.For | ast.comprehension):
                targets = [node.target]
            bound = node.iter if isinstance(node, ast.For | ast.comprehension) else None
            value = bound or getattr(node, "value", None)
            if not isinstance(value, ast.expr):
                continue
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, []).append(value)
        return found

    def literals(self, node: ast.expr | None, steps: int = _MOST_STEPS) -> Iterator[str]:
        """Return the strings that an argument may be, itself or through names."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value:
                yield node.value
        elif isinstance(node, ast.IfExp):
            yield from self.literals(node.body, steps)
            yield from self.literals(node.orelse, steps)
        elif isinstance(node, ast.Name | ast.Call | ast.Subscript | ast.BoolOp):
            yield from (text for text in self._within(node, steps) if " " in text)

    def _within(self, node: ast.AST, steps: int) -> Iterator[str]:
        """Return all strings in an expression and behind its names; most are codes, not texts."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name) and steps:
            scope: _Scope | None = self
            while scope is not None:
                for value in scope.values.get(node.id, []):
                    yield from scope._within(value, steps - 1)  # noqa: SLF001 - its own class
                scope = scope.outer
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for part in (node.func.value, *node.args):  # a look-up in a table, and what else
                yield from self._within(part, steps)
        elif not isinstance(node, ast.JoinedStr | ast.Attribute | ast.Lambda):
            for child in ast.iter_child_nodes(node):
                yield from self._within(child, steps)


def _wrappers(tree: ast.Module) -> dict[str, int]:
    """Return the functions and classes of a module that take a `template`, and at which place."""
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        inside = [item for item in node.body if getattr(item, "name", "") == "__init__"]
        function = inside[0] if isinstance(node, ast.ClassDef) and inside else node
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [argument.arg for argument in function.args.args]
            if "template" in names:
                found[node.name] = names.index("template") - (names[0] in {"self", "cls"})
    return found


def _of_call(node: ast.Call, scope: _Scope, positions: dict[str, int]) -> Iterator[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if name == "__init__":  # an error of its own passes its sentence on
        position: int | None = 0
    else:
        position = positions.get(name)
    if position is not None and len(node.args) > position:
        yield from scope.literals(node.args[position])
    for keyword in node.keywords:
        wanted = keyword.arg in _KEYWORDS.get(name, ())
        if wanted or (position is not None and keyword.arg == "template"):
            yield from scope.literals(keyword.value)


def _of_body(body: ast.AST, scope: _Scope, positions: dict[str, int]) -> Iterator[str]:
    for node in ast.iter_child_nodes(body):
        if isinstance(node, ast.Call):
            yield from _of_call(node, scope, positions)
        inner = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = _Scope(node, scope)
        yield from _of_body(node, inner, positions)


def strings() -> dict[str, str]:
    """Return every string that a page may show, with the file that has it."""
    found: dict[str, str] = {}
    for file, ids in template_strings():
        for text in ids:
            found.setdefault(text, f"templates/{file}")
    trees = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "app").rglob("*.py"))
    }
    positions = dict(_POSITIONS)
    for tree in trees.values():
        positions |= _wrappers(tree)
    for file, tree in trees.items():
        for text in _of_body(tree, _Scope(tree), positions):
            if not text.endswith(".html"):
                found.setdefault(text, file)
    return found


def template_strings() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return each message of the templates with its file: one string, or singular and plural."""
    rows = extract_from_dir(
        str(ROOT / "templates"),
        _TEMPLATE_METHODS,
        _TEMPLATE_OPTIONS,
        keywords={"_": None, "gettext": None, "ngettext": (1, 2)},
    )
    for file, _, message, _, _ in rows:
        yield file, message if isinstance(message, tuple) else (message,)


def translated() -> frozenset[str]:
    """Return the strings that have a translation, be it the same in both languages."""
    found: set[str] = set()
    for path in sorted(CATALOGUES.glob("*.po")):
        with path.open("rb") as file:
            for message in read_po(file, ignore_obsolete=True):
                texts = message.string if isinstance(message.string, tuple) else (message.string,)
                if message.id and not message.fuzzy and all(texts):
                    found |= {message.id} if isinstance(message.id, str) else set(message.id)
    return frozenset(found)


def missing(found: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the strings, all or those given, that Chinese pages would show in English."""
    known = translated()
    every = strings() if found is None else found
    return {text: file for text, file in every.items() if text not in known and _words(text)}


def _words(text: str) -> bool:
    """Return whether a text has words to translate, beside names and formulas."""
    bare = text
    while "{" in bare and "}" in bare.partition("{")[2]:
        before, _, rest = bare.partition("{")
        bare = before + rest.partition("}")[2]
    return any(character.isalpha() for character in bare)


if __name__ == "__main__":
    for string, where in missing().items():
        if "--po" in sys.argv:
            quoted = string.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            print(f'\n#: {where}\nmsgid "{quoted}"\nmsgstr ""')  # noqa: T201 - a program's output
        else:
            print(f"{where}: {string}")  # noqa: T201 - a program's output
    if "--po" not in sys.argv:
        for string in sorted(translated() - strings().keys()):
            print(f"left over: {string}")  # noqa: T201 - a program's output
