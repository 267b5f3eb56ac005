"""What people call a request's arrival, its tokens and how often it occurs, in files of records.

Names are compared by their letters alone, so that `num_prefill_tokens`, `ContextTokens` and
`Request tokens` each find their twin. In each list the surest name stands first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LENGTH_NAMES = ("length", "lengths", "tokens", "totaltokens", "seqlen", "sequencelength")
INPUT_NAMES = (
    "inputlength",
    "promptlength",
    "contextlength",
    "inputtokens",
    "prompttokens",
    "contexttokens",
    "requesttokens",
    "numprefilltokens",
    "inputlen",
    "promptlen",
    "promptsize",
    "context",
    "prompt",
    "input",
)
OUTPUT_NAMES = (
    "outputlength",
    "outputtokens",
    "generatedtokens",
    "completiontokens",
    "responsetokens",
    "numdecodetokens",
    "outputlen",
    "tokensize",
    "output",
)
COUNT_NAMES = ("count", "requests", "repeat")
TIME_NAMES = (
    "timestamp",
    "arrivaltimestamp",
    "arrivaltime",
    "arrivedat",
    "arrival",
    "time",
)
HASH_NAMES = ("hashids",)
TOKEN_NAMES = ("tokenids", "prompttokenids", "inputids", "tokens")


def pick(names: Iterable[str], wanted: tuple[str, ...]) -> int | None:
    """Return the position of the name that stands first among the wanted ones."""
    letters = [re.sub(r"[^a-z]", "", name.lower()) for name in names]
    return next((letters.index(name) for name in wanted if name in letters), None)


def pick_name(names: Iterable[str], wanted: tuple[str, ...]) -> str | None:
    """Return that name itself, as it is written."""
    written = list(names)
    at = pick(written, wanted)
    return None if at is None else written[at]
