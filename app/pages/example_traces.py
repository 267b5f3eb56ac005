"""Two small logs to try the page with, made by chance and always the same.

They have the forms in which Mooncake and Azure publish theirs (see `app/readers/trace_formats.py`);
their numbers are nobody's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from app.domain.notes import Note

_BLOCK_TOKENS = 512
_REQUESTS = 400
_LONGEST_TOKENS = 100_000
_GOES_ON = 0.6
_CYCLE, _BURST = 100, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleTrace:
    """A log with its file name, and what it shows."""

    file_name: str
    text: Note
    content: Callable[[], bytes]


@lru_cache(maxsize=1)
def conversations() -> bytes:
    """Return JSON lines with block ids: conversations that go on under one system prompt."""
    chance = random.Random(4)  # noqa: S311 - the same log every time
    system = [0, 1]
    histories: list[tuple[list[int], int]] = []
    lines = []
    next_block, time_ms = len(system), 0
    for _ in range(_REQUESTS):
        time_ms += int(chance.expovariate(1 / 3000))
        known, tokens = system, len(system) * _BLOCK_TOKENS
        if histories and chance.random() < _GOES_ON:
            known, tokens = histories[-1 - min(len(histories) - 1, int(chance.expovariate(1 / 25)))]
        # The turn before ended inside a block: that block is another one now.
        whole = tokens // _BLOCK_TOKENS
        tokens = min(_LONGEST_TOKENS, tokens + int(chance.lognormvariate(7.3, 1.0)) + 1)
        blocks = -(-tokens // _BLOCK_TOKENS)
        fresh = range(next_block, next_block + blocks - whole)
        next_block += len(fresh)
        ids = [*known[:whole], *fresh]
        output = int(chance.lognormvariate(5.2, 0.8)) + 1
        histories.append((ids, tokens))
        lines.append(
            json.dumps(
                {
                    "timestamp": time_ms,
                    "input_length": tokens,
                    "output_length": output,
                    "hash_ids": ids,
                }
            )
        )
    return "\n".join([*lines, ""]).encode()


@lru_cache(maxsize=1)
def completions() -> bytes:
    """Return CSV with dates and token counts: short answers to all kinds of prompts, in bursts."""
    chance = random.Random(7)  # noqa: S311 - the same log every time
    moment = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for number in range(_REQUESTS):
        burst = number % _CYCLE < _BURST
        moment += timedelta(
            microseconds=int(chance.expovariate(1 / (80_000 if burst else 900_000)))
        )
        context = min(7_437, int(chance.lognormvariate(7.2, 1.1)) + 3)
        generated = int(chance.lognormvariate(2.8, 0.9)) + 1
        lines.append(f"{moment:%Y-%m-%d %H:%M:%S.%f}0,{context},{generated}")
    return "\n".join([*lines, ""]).encode()


EXAMPLE_TRACES: Mapping[str, ExampleTrace] = {
    "conversations": ExampleTrace(
        file_name="conversations.jsonl",
        text=Note("", "Conversations with block ids, as Mooncake publishes its logs"),
        content=conversations,
    ),
    "completions": ExampleTrace(
        file_name="completions.csv",
        text=Note("", "Dates and token counts, as Azure publishes its logs"),
        content=completions,
    ),
}
