"""Pages and their fragments: one Jinja environment a language, strict about missing names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.units import bytes_text, percent_text
from app.pages.amounts_in_words import in_words
from app.pages.formulas import in_language
from app.pages.navigation import NAVIGATION
from app.web.assets import ROOT, asset_url
from app.web.language import COOKIE, HTML_LANG, LANGUAGES, language_of, translations

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TEMPLATES = ROOT / "templates"
# Stands for the address that a page was asked at, wherever a page shows a command.
OWN_ADDRESS = "{own_address}"
COOKIE_SECONDS = 365 * 24 * 3600
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]{0,60}")
# Longer addresses are refused by servers and proxies; such a calculation has no link.
LONGEST_QUERY = 8_000
THEMES = frozenset({"light", "dark"})


def number_text(value: int) -> str:
    """Return an integer with thin spaces between groups of three digits."""
    return f"{value:,}".replace(",", "\u202f")


def sentence(item: Note | DomainError, language: str) -> str:
    """Return a sentence in a language, with the sentences that stand in it."""
    params = {
        name: sentence(value, language) if isinstance(value, Note) else value
        for name, value in item.params.items()
    }
    return translations(language).gettext(item.template).format_map(params)


def with_whole_flags(text: str) -> Markup:
    """Return a sentence in which no line breaks inside a flag, as it else may behind a hyphen."""
    # Escaping touches no character of a flag.
    return Markup(_FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(text))))  # noqa: S704


@lru_cache(maxsize=len(LANGUAGES))
def environment(language: str) -> Environment:
    """Return the environment of a language.

    Each language has its own: an overlay would share globals, and the second language would
    overwrite the first.
    """
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
        auto_reload=False,
    )
    known = translations(language)
    env.install_gettext_translations(known, newstyle=True)  # type: ignore[attr-defined]

    env.filters["bytes"] = bytes_text
    env.filters["formula"] = lambda text: in_language(text, known.gettext)
    env.filters["number"] = number_text
    env.filters["sentence"] = lambda item: sentence(item, language)
    env.filters["translated"] = known.gettext
    env.filters["flags"] = with_whole_flags
    env.filters["amount"] = lambda text: in_words(text, known.gettext)
    env.globals.update(
        navigation=NAVIGATION,
        asset_url=asset_url,
        percent=percent_text,
        lang=language,
        html_lang=HTML_LANG[language],
        languages=LANGUAGES,
    )
    return env


def wants_fragment(request: Request) -> bool:
    """Return whether htmx asks for a part of the page, to swap it in."""
    return request.headers.get("hx-request") == "true" and (
        request.headers.get("hx-request-type", "partial") == "partial"
    )


def language_link(request: Request, language: str) -> str:
    """Return the address of this page in another language."""
    kept = [(key, value) for key, value in request.query_params.multi_items() if key != "lang"]
    return f"{request.url.path}?{urlencode([*kept, ('lang', language)])}"


def render(
    request: Request,
    template: str,
    page: DataclassInstance,
    *,
    fragment: str | None = None,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """Return a page, or one named block of it; the context is the page's dataclass, no more."""
    language = language_of(request)
    context: dict[str, Any] = {item.name: getattr(page, item.name) for item in fields(page)}
    context.setdefault("has_link", len(context.get("query") or "") <= LONGEST_QUERY)
    context["path"] = request.url.path
    context["own_address"] = f"{request.url.scheme}://{request.url.netloc}"
    theme = request.cookies.get("theme", "")
    context["theme"] = theme if theme in THEMES else ""
    context["other_language"] = {
        code: language_link(request, code) for code in LANGUAGES if code != language
    }
    loaded = environment(language).get_template(template)
    if fragment is None:
        text = loaded.render(context)
    else:
        text = "".join(loaded.blocks[fragment](loaded.new_context(context)))
    answer = HTMLResponse(text, status_code=status, headers=dict(headers or {}))
    answer.headers["Vary"] = "Accept-Language, Cookie, HX-Request, HX-Request-Type"
    answer.headers["Cache-Control"] = "no-cache"
    if request.query_params.get("lang") in LANGUAGES:
        answer.set_cookie(
            COOKIE, language, max_age=COOKIE_SECONDS, httponly=True, samesite="lax", path="/"
        )
    return answer
