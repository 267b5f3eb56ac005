"""The Chinese catalogues: complete, well formed, and true to the placeholders of the English."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from babel.messages.catalog import Message
from babel.messages.pofile import read_po

from app.locale import missing as extraction
from app.web.language import translations

FILES = sorted(extraction.CATALOGUES.glob("*.po"))
ROOMS = ("demo", "domain", "engines", "pages", "readers", "templates")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}|%\([a-z_]+\)[sd]|%%")
_PUNCTUATION_OF_LATIN_TEXT = re.compile(r"[\u4e00-\u9fff][,;!?](?:\s|$)|[\u4e00-\u9fff]\.$")


def _messages(path: Path) -> list[Message]:
    with path.open("rb") as file:
        found = [message for message in read_po(file, abort_invalid=True) if message.id]
    assert found, f"{path.name} is empty"
    return found


def _texts(entry: str | tuple[str, ...] | list[str] | None) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def test_every_room_has_its_catalogue() -> None:
    """One file a room, each read by the pages."""
    assert [path.stem for path in FILES] == list(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_catalogue_is_well_formed(path: Path) -> None:
    """It parses, says its language and its one plural form, and has no fuzzy or obsolete entry."""
    text = path.read_text(encoding="utf-8")
    assert '"Language: zh_Hans\\n"' in text
    assert '"Plural-Forms: nplurals=1; plural=0;\\n"' in text
    assert "fuzzy" not in text
    assert "#~" not in text
    for message in _messages(path):
        assert not message.fuzzy
        assert len(_texts(message.string)) == 1
        assert all(_texts(message.string)), message.id


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_placeholders_are_those_of_the_original(path: Path) -> None:
    """A translation names the same figures, no more and no fewer, each as often."""
    for message in _messages(path):
        singular = sorted(_PLACEHOLDER.findall(_texts(message.id)[0]))
        for text in (*_texts(message.id)[1:], *_texts(message.string)):
            assert sorted(_PLACEHOLDER.findall(text)) == singular, message.id


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_chinese_sentences_have_chinese_punctuation(path: Path) -> None:
    """After a Chinese character stand full-width marks, and a full stop is the Chinese one."""
    for message in _messages(path):
        for text in _texts(message.string):
            assert not _PUNCTUATION_OF_LATIN_TEXT.search(text), text


def test_no_string_is_translated_twice() -> None:
    """A string stands once, in one file: the catalogues are merged, and the last would win."""
    ids = [
        line
        for path in FILES
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(('msgid "', 'msgid_plural "')) and line != 'msgid ""'
    ]
    assert len(ids) > 1000
    assert len(ids) == len(set(ids))


@pytest.fixture(scope="module")
def strings() -> Mapping[str, str]:
    """Every string that a page may show, with its file; read once, since all sources are parsed."""
    return extraction.strings()


def test_nothing_is_missing(strings: Mapping[str, str]) -> None:
    """Each string that a page may show has a Chinese translation."""
    assert len(strings) > 1000
    assert extraction.missing(strings) == {}


def test_no_translation_is_left_over(strings: Mapping[str, str]) -> None:
    """A string that no source has any more is not kept."""
    assert extraction.translated() - strings.keys() == set()


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("Effective", "有效状态"),
        ("Padded to the longest", "按最长补齐"),
        ("Paged, %(size)s to a block", "分页分配，每块 %(size)s"),
        ("Not counted", "未计入"),
        ("Assumed", "假设"),
        ("Block tables", "块表"),
        ("Reference count", "引用计数"),
        ("Pipeline stages", "流水线阶段"),
        ("Tensor parallel", "张量并行"),
        ("{field} must be an integer, got {value}", "{field} 必须是整数，收到 {value}"),
    ],
)
def test_the_words_are_fixed(english: str, chinese: str) -> None:
    """The vocabulary of both languages is agreed upon, and pages read it."""
    assert translations("zh").gettext(english) == chinese


def test_one_plural_form_serves_both() -> None:
    """Chinese says one request and many in one way."""
    known = translations("zh")
    for count in (0, 1, 2):
        assert known.ngettext("%(num)s request", "%(num)s requests", count) == "%(num)s 个请求"


_MODULE = '''
from app.domain.errors import OutOfRange
from app.domain.notes import Note
_TABLE = {"a": ("code_a", "a sentence of a table"), "b": ("code_b", "another one")}
def wrapped(code: str, template: str) -> Note:
    """No sentence itself."""
    return Note(code, template)
def some(kind, flag):
    code, template = _TABLE.get(kind, ("none", "one of no kind"))
    wrapped("wrapped", "said through a wrapper")
    print("printed only")
    if flag:
        raise OutOfRange("{field} is wrong", field="x")
    text = f"built {code}"
    return [Note(code, template), Note("either", "with it" if flag else "without it"), text]
'''


def test_sentences_are_found_behind_names() -> None:
    """Literals, both branches of a choice, rows of a table and arguments of wrappers are found."""
    tree = ast.parse(_MODULE)
    positions = extraction._POSITIONS | extraction._wrappers(tree)
    found = set(extraction._of_body(tree, extraction._Scope(tree), positions))
    assert found == {
        "a sentence of a table", "another one", "one of no kind", "said through a wrapper",
        "{field} is wrong", "with it", "without it",
    }  # fmt: skip
