"""What tests of the config reader share: measured cases, and what a reading adds up to."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

from app.domain.dtypes import DTYPES
from app.domain.state import KvFormat, State
from app.readers.hf_config import read_config
from app.readers.reading import ModelReading

DATA = Path(__file__).parents[1] / "data"
BASE: dict[str, object] = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 131072,
}


@cache
def measured(name: str) -> dict[str, object]:
    """Return a file of measured cases."""
    with gzip.open(DATA / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, object] = json.load(file)
    return found


def kept_bytes(reading: ModelReading, tokens: int, dtype: str = "bf16") -> int:
    """Return what one sequence of so many tokens keeps, with keys and values of that format."""
    formats = KvFormat(key=DTYPES[dtype], value=DTYPES[dtype])
    return sum(
        state.kept_tokens(tokens) * state.bytes_per_position(formats)
        + (state.fixed_bytes() if tokens else 0)
        for layer in reading.state.layers
        for state in layer.states
    )


def states(config: dict[str, object], **more: int) -> list[tuple[State, ...]]:
    """Return the states of each layer."""
    return [layer.states for layer in read_config(config, **more).state.layers]


def kinds(config: dict[str, object]) -> str:
    """Return one letter a layer: F full, S sliding, C chunked, L latent, K shared, R, X."""
    letters = {
        "full_attention": "F", "sliding_window": "S", "chunked_attention": "C",
        "latent_attention": "L", "shared": "K", "recurrent": "R", "cross_attention": "X",
    }  # fmt: skip
    return "".join(letters[own[0].kind] if own else "-" for own in states(config))
