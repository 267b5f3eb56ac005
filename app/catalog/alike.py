"""Models by the names that people write: in any case, without an owner, with what was done to them.

A checkpoint that was quantised, tuned or repacked keeps the shape of its layers, and so its cache.
A name is looked up as it stands, then without the words for such treatments; a name that leads to
models of different shapes leads to none. alike.json adds models whose shape is another's, each with
its public source.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.catalog import models
from app.domain.errors import DomainError
from app.readers.hf_config import read_config
from app.readers.reading import ModelReading

ALIKE = models.DATA / "alike.json"
_LONGEST_NAME = 300
# Words for what was done to the weights, or to the file they come in.
_TREATMENTS = frozenset(
    {
        "awq", "gptq", "fp8", "nvfp4", "mxfp4", "mxfp8", "bnb", "int4", "int8", "4bit", "8bit",
        "2bit", "3bit", "6bit", "w4a16", "w8a8", "w8a16", "w4a8", "w4a4", "autoround", "gguf",
        "quantized", "quantised", "quant", "dynamic", "static", "pertensor", "ct", "qat", "exl2",
        "exl3", "mlx", "bf16", "fp16", "q4", "q8", "unsloth", "torchao", "marlin", "g128", "mopd",
        "abliterated", "hf", "block", "channel", "kv", "k", "m", "xl", "ud", "mixed",
        "safetensors",
        "bit", "asym", "sym", "preview",
    }
)  # fmt: skip
# Words for how a model was tuned, and months of release.
_TUNINGS = frozenset(
    {"instruct", "chat", "base", "it", "pt", "thinking", "reasoning", "sft", "dpo", "rl",
     "pretrain", "text", "only", "finetune", "finetuned", "meta"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model found by a name: `exact` where the catalogue has that very id."""

    id: str
    exact: bool
    config: Mapping[str, Any]
    reading: ModelReading
    source_url: str = ""


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a model's own name, in lower case."""
    own = name.rstrip("/").rpartition("/")[2].casefold()
    return tuple(word for word in re.split(r"[-_\s:]+", own) if word)


def _plain(words: Iterable[str], dropped: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        word
        for word in words
        if word not in dropped and not _is_date(word) and not word.startswith("quantized.")
    )


def _is_date(word: str) -> bool:
    """Say whether a word is a month or day of release (2507, 0731), and no size or version."""
    if not re.fullmatch(r"\d{4}", word):
        return False
    first, second = int(word[:2]), int(word[2:])
    return (first in range(23, 30) and second in range(1, 13)) or (
        first in range(1, 13) and second in range(1, 32)
    )  # fmt: skip


@lru_cache(maxsize=1)
def _alike() -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(ALIKE.read_text(encoding="utf-8")))


@lru_cache(maxsize=1)
def _tables() -> tuple[dict[tuple[str, ...], list[str]], ...]:
    """Return ids by their words: whole, without treatments, and without tunings too."""
    whole: dict[tuple[str, ...], list[str]] = {}
    treated: dict[tuple[str, ...], list[str]] = {}
    tuned: dict[tuple[str, ...], list[str]] = {}
    names = [*models.model_ids(), *(entry["name"] for entry in _alike())]
    for model_id in dict.fromkeys(names):
        words = _words(model_id)
        whole.setdefault(words, []).append(model_id)
        treated.setdefault(_plain(words, _TREATMENTS), []).append(model_id)
        tuned.setdefault(_plain(words, _TREATMENTS | _TUNINGS), []).append(model_id)
    return whole, treated, tuned


def named_model(name: str, *, encoder_tokens: int | None = None) -> NamedModel | None:
    """Return the model of a name, or None where no or no single shape is found.

    A name with an owner is tried whole; where a part of it is itself a model's name ("A/B" said of
    two models), the first part is tried last.
    """
    text = name[:_LONGEST_NAME].strip(" \t,;'\"`()")
    for known in (text, *(entry["name"] for entry in _alike() if _same(entry["name"], text))):
        found = _of_id(known, text, encoder_tokens)
        if found is not None:
            return found
    parts = [part for part in text.split("/") if part]
    for part in dict.fromkeys((*parts[-1:], *parts[:1])):
        words = _words(part)
        bare, barest = _plain(words, _TREATMENTS), _plain(words, _TREATMENTS | _TUNINGS)
        whole, treated, tuned = _tables()
        for table, key in ((whole, words), (whole, bare), (whole, barest), (treated, bare),
                           (tuned, barest)):  # fmt: skip
            found = _one_shape(table.get(key, []), text, encoder_tokens) if key else None
            if found is not None:
                return found
    return None


def _same(known: str, text: str) -> bool:
    return known.casefold() == text.casefold()


def _one_shape(ids: list[str], asked: str, encoder_tokens: int | None) -> NamedModel | None:
    """Return the first of these models that can be read, if all that can keep the same."""
    readable = [
        found for model_id in ids if (found := _of_id(model_id, asked, encoder_tokens)) is not None
    ]
    shapes = {found.reading.state for found in readable}
    return readable[0] if len(shapes) == 1 else None


def _of_id(model_id: str, asked: str, encoder_tokens: int | None) -> NamedModel | None:
    """Return a model by its own id, from the catalogue or alike.json; None if not readable."""
    exact = _same(model_id, asked)
    try:
        loaded = models.entry(model_id)
        return NamedModel(
            id=loaded["id"],
            exact=exact,
            config=loaded["config"],
            reading=models.read_entry(model_id, encoder_tokens=encoder_tokens),
            source_url=loaded["source"]["url"],
        )
    except DomainError:
        pass
    entry = next((item for item in _alike() if _same(item["name"], model_id)), None)
    if entry is None:
        return None
    config = dict(entry.get("config") or models.entry(entry["like"])["config"])
    config |= entry.get("changes", {})
    return NamedModel(
        id=entry["name"],
        exact=exact,
        config=config,
        reading=read_config(config, encoder_tokens=encoder_tokens),
        source_url=entry["source"],
    )


def alike_in_bytes(low: float, high: float, most: int = 8) -> list[str]:
    """Return ids whose layers grow by so many bytes a token at 16 bits, one for each shape.

    A shape is named by its model of the owner who has the most models in the catalogue; the shapes
    of the most models come first.
    """
    owners = Counter(model_id.partition("/")[0] for model_id in models.index())
    found: dict[tuple[object, ...], list[str]] = {}
    for model_id, row in models.index().items():
        size = row.get("bytes_per_token")
        fixed = (row.get("fixed_bytes") or 0) + (row.get("window_bytes") or 0)
        if size and not fixed and low <= size <= high:
            found.setdefault((row.get("family"), row.get("layers"), size), []).append(model_id)
    shapes = sorted(found.values(), key=len, reverse=True)
    return [max(ids, key=lambda it: owners[it.partition("/")[0]]) for ids in shapes[:most]]
