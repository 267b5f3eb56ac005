"""The settings that a request of `/fit` stands for in an engine, and how it names the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.api.compute import ModelAndFormats
from app.api.fit_schemas import FitRequest
from app.domain.dtypes import dtype_named
from app.domain.errors import Conflict, Unsupported
from app.domain.notes import Note
from app.domain.state import KvFormat

if TYPE_CHECKING:
    from app.engines.vllm.planned import VllmPlan

_VLLM_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp8": "fp8"}


def vllm_settings(request: FitRequest, given: ModelAndFormats) -> dict[str, Any]:
    """Return vLLM's settings for a request; None for those it is not told.

    Raises:
        Unsupported: for a format that the engine's cache does not take by one name.
        Unknown: for a release that is not known.

    """
    stages = request.layers_per_stage
    return {
        "tensor_parallel_size": request.tensor_parallel,
        "pipeline_parallel_size": request.pipeline_parallel,
        "decode_context_parallel_size": request.decode_context_parallel,
        "data_parallel_size": request.data_parallel,
        **_format_settings(request, given),
        "block_size": request.block_size,
        "max_num_batched_tokens": request.batch_tokens,
        "max_num_seqs": request.max_sequences,
        "layers_per_stage": None if stages is None else tuple(stages),
        "version": request.engine_version,
    }


def _format_settings(request: FitRequest, given: ModelAndFormats) -> dict[str, Any]:
    """Return --kv-cache-dtype; before a release names 16-bit formats, `auto` and --dtype.

    A cache of `auto` keeps what the model runs in, so a format that is not the model's own is had
    by running the model in it.
    """
    from app.engines.vllm.settings import KV_CACHE_DTYPES
    from app.engines.vllm.versions import NEWEST, release

    base = given.formats.base
    if base is None or given.formats.ranges or base != KvFormat(key=base.key, value=base.key):
        raise Unsupported("{field}: this engine keeps one format for all layers", field="kv_dtype")
    name = _VLLM_DTYPES.get(base.key.name)
    if name is None:
        raise Unsupported("{field} {value} is not among the formats {known} of this engine",
                          field="kv_dtype", value=base.key.name,
                          known=", ".join(_VLLM_DTYPES))  # fmt: skip
    version = NEWEST if request.engine_version is None else request.engine_version
    if release(version).since(*KV_CACHE_DTYPES[name]):
        return {"kv_cache_dtype": name}
    own = given.reading.dtype
    is_own = own is not None and dtype_named(own, field=("model", "torch_dtype")) == base.key
    return {"kv_cache_dtype": "auto", "dtype": None if is_own else name}


def format_notes(request: FitRequest, given: ModelAndFormats) -> tuple[Note, ...]:
    """Return a sentence where the release has the format only by running the model in it."""
    if request.engine == "none":
        return ()
    name = _format_settings(request, given).get("dtype")
    if name is None:
        return ()
    return (Note("kv_dtype_by_model", "This release has no cache format of the name {dtype}: the "
                 "model runs in it (--dtype {dtype}), and its cache keeps it.",
                 {"dtype": name}),)  # fmt: skip


def check_format(request: FitRequest, given: ModelAndFormats, plan: VllmPlan) -> None:
    """Check that a cache of `auto` is the format asked for, not one that a checkpoint switches on.

    Raises:
        Conflict: where the release has no name for what was asked for and takes another.

    """
    asked = _format_settings(request, given)["kv_cache_dtype"]
    if asked == "auto" != plan.kv_cache_dtype and given.formats.base is not None:
        raise Conflict("{field}: {value} is not a format of vLLM {release}", field="kv_dtype",
                       value=_VLLM_DTYPES[given.formats.base.key.name],
                       release=plan.version)  # fmt: skip
