"""Which language a page speaks: `?lang=`, else the cookie that set, else Accept-Language."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from gettext import NullTranslations
from pathlib import Path

from starlette.requests import Request

LOCALE = Path(__file__).resolve().parents[1] / "locale"
LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "中文"}
HTML_LANG: Mapping[str, str] = {"en": "en", "zh": "zh-Hans"}
COOKIE = "lang"


class _Merged(NullTranslations):
    """Translations of several catalogues as one."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        super().__init__()
        self._messages = messages

    def gettext(self, message: str) -> str:
        return self._messages.get(message, message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return self._messages.get(msgid1 if n == 1 else msgid2) or self.gettext(
            msgid1 if n == 1 else msgid2
        )

    def pgettext(self, context: str, message: str) -> str:  # noqa: ARG002 - no contexts in use
        return self.gettext(message)


@lru_cache(maxsize=len(LANGUAGES))
def translations(language: str) -> NullTranslations:
    """Return the translations of a language, read from its .po files when first asked for."""
    if language == "en":
        return NullTranslations()
    from babel.messages.pofile import read_po  # noqa: PLC0415 - only for a translated page

    messages: dict[str, str] = {}
    for path in sorted((LOCALE / "zh_Hans").glob("*.po")):
        with path.open("rb") as file:
            for message in read_po(file, ignore_obsolete=True):
                if not message.id or message.fuzzy:
                    continue
                ids = message.id if isinstance(message.id, tuple | list) else (message.id,)
                texts = message.string
                strings = texts if isinstance(texts, tuple | list) else (texts,)
                for position, text_id in enumerate(ids):
                    # Chinese has one plural form, which serves both of the English ones.
                    text = strings[min(position, len(strings) - 1)]
                    if text:
                        messages[str(text_id)] = str(text)
    return _Merged(messages)


def _accepted(header: str) -> str:
    """Return the best language of an Accept-Language header; English where none fits."""
    best, best_quality = "en", 0.0
    for part in header.split(",")[:20]:
        tag, _, rest = part.strip().partition(";")
        name = tag.partition("-")[0].lower()
        if name not in LANGUAGES:
            continue
        try:
            quality = float(rest.strip().removeprefix("q=")) if rest else 1.0
        except ValueError:
            continue
        if quality > best_quality:
            best, best_quality = name, quality
    return best


def language_of(request: Request) -> str:
    """Return `en` or `zh` for a request."""
    for asked in (request.query_params.get("lang"), request.cookies.get(COOKIE)):
        if asked is not None and asked in LANGUAGES:
            return asked
    return _accepted(request.headers.get("accept-language", ""))
