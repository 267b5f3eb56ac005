"""Requests of `/traces`, and what the form fields of an upload are as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt

from app.api import schemas as s
from app.domain.ledgers import MAX_TOTAL_BYTES
from app.domain.timeline import MAX_DURATION_NS, MAX_RATE_TOKENS_PER_S
from app.domain.traces import MAX_BLOCK_TOKENS
from app.readers.json_text import parse_json

MAX_TRACE_BINS = 2_000
MAX_CURVE_POINTS = 2_000
NS_PER_MS = 10**6
MAX_DURATION_MS = MAX_DURATION_NS // NS_PER_MS
DEFAULT_PREFILL_TOKENS_PER_S = 10_000
DEFAULT_DECODE_TOKENS_PER_S = 50

TokensPerSecond = Annotated[StrictInt, Field(ge=1, le=MAX_RATE_TOKENS_PER_S)]
TimeUnit = Literal["s", "ms", "us", "ns"]


class TracesRequest(s.Strict):
    """How to read a log and what to make of it; the log itself comes as a file.

    How long a request lives follows from two rates, or from one duration for all. Without any of
    them the rates are 10,000 tokens a second for prompts and 50 for answers; with a decode rate
    alone a prompt takes no time.
    """

    model: s.ModelInput | None = Field(
        default=None, description="Left out: lengths and blocks, and nothing in bytes."
    )
    kv_dtype: s.KvDType | None = None
    element_bytes: s.ElementBytes | None = None
    block_size: s.BlockSize = Field(
        default=16, description="Tokens of an engine's block; token ids are hashed into such."
    )
    block_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_BLOCK_TOKENS)] | None = Field(
        default=None, description="Tokens of the log's blocks, where it does not tell itself."
    )
    time_unit: TimeUnit | None = Field(default=None, description="Of times written as numbers.")
    prefill_tokens_per_s: TokensPerSecond | None = None
    decode_tokens_per_s: TokensPerSecond | None = None
    duration_ms: Annotated[StrictInt, Field(ge=1, le=MAX_DURATION_MS)] | None = Field(
        default=None, description="All requests take so long; instead of the rates."
    )
    pool_bytes: Annotated[StrictInt, Field(ge=0, le=MAX_TOTAL_BYTES)] | None = Field(
        default=None, description="A pool to look up on the curve."
    )
    bins: Annotated[StrictInt, Field(ge=2, le=MAX_TRACE_BINS)] = Field(
        default=200, description="How finely time is cut, at most."
    )
    curve_points: Annotated[StrictInt, Field(ge=4, le=MAX_CURVE_POINTS)] = Field(
        default=200, description="Points of the curve, at most; each is exact."
    )


def traces_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return form fields as a request's body: what is empty left out, JSON texts decoded.

    Raises:
        Malformed: for a model that is not JSON, or formats that begin like JSON and are not; for
            either when it names a key twice.

    """
    body = {name: value for name, value in fields.items() if value not in (None, "")}
    if "model" in body:
        body["model"] = parse_json(body["model"], field="model")
    if str(body.get("kv_dtype", "")).lstrip().startswith(("{", "[")):
        body["kv_dtype"] = parse_json(body["kv_dtype"], field="kv_dtype")
    return body
