"""Formulas in a page's language: `2 × 32 layers × 8 KV heads × 128 × 2 B = 131072 B/token`.

The API and the command line print them as they are; only the nouns behind their numbers are words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from app.web.marks import mark

_COUNTED: Mapping[str, str] = {
    "layer": mark("{count} layers"),
    "head": mark("{count} KV heads"),
    "request": mark("{count} requests"),
    "position": mark("{count} positions"),
    "latent": mark("{count} latent"),
    "rope": mark("{count} rope"),
    "index": mark("{count} index"),
    "more": mark("{count} more"),
    "token": mark("{count} tokens"),
    "block": mark("{count} blocks"),
}
_NOUN = re.compile(rf"(\d+) (?:KV )?({'|'.join(_COUNTED)})s?\b")


def in_language(formula: str, say: Callable[[str], str]) -> str:
    """Return a formula with the nouns of a language; without a translation it stays as it is."""

    def counted(found: re.Match[str]) -> str:
        template = _COUNTED[found[2]]
        said = say(template)
        return found[0] if said == template else said.format(count=found[1])

    return _NOUN.sub(counted, formula)
