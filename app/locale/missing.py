"""Lists the strings that lack a translation: `python -m app.locale.missing [--po]`.

Templates are searched by Babel. In Python a string is shown to people where it is the template of a
note or of a refusal, the symbols or source of a working, or marked by name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.extract import extract_from_dir

from app.domain import errors
from app.web.language import translations

ROOT = Path(__file__).resolve().parents[2]
_ERRORS = frozenset(
    name
    for name, item in vars(errors).items()
    if isinstance(item, type) and issubclass(item, errors.DomainError)
)
_FIRST_ARGUMENT = _ERRORS | {
    "mark", "say", "mistake", "_mistake", "LengthsMistake", "TraceMistake",
}  # fmt: skip
_KEYWORDS = frozenset({"symbols", "source"})
_TEMPLATE_METHODS = [("**.html", "jinja2.ext:babel_extract")]


def _literal(node: ast.expr | None) -> str | None:
    """Return the text of a string literal, adjacent pieces joined; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _of_call(node: ast.Call) -> Iterator[str]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    position = 0 if name in _FIRST_ARGUMENT else 1 if name == "Note" else None
    if position is not None and len(node.args) > position:
        text = _literal(node.args[position])
        if text:
            yield text
    for keyword in node.keywords:
        wanted = name == "Working" and keyword.arg in _KEYWORDS
        if wanted or (name == "Note" and keyword.arg == "template"):
            text = _literal(keyword.value)
            if text:
                yield text


def strings() -> dict[str, str]:
    """Return every string that a page may show, with the file that has it."""
    found: dict[str, str] = {}
    options = {"**.html": {"newstyle_gettext": "true", "trimmed": "false"}}
    rows = extract_from_dir(
        str(ROOT / "templates"), _TEMPLATE_METHODS, options, keywords={"_": None, "ngettext": (1, 2)}
    )
    for file, _, message, _, _ in rows:
        for text in message if isinstance(message, tuple) else (message,):
            found.setdefault(text, f"templates/{file}")
    for path in sorted((ROOT / "app").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for text in _of_call(node):
                    found.setdefault(text, str(path.relative_to(ROOT)))
    return found


def missing() -> dict[str, str]:
    """Return the strings that Chinese pages would show in English, with their files."""
    known = translations("zh")
    untouched = (text for text in strings().items())
    return {text: file for text, file in untouched if known.gettext(text) == text and _words(text)}


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
