"""The settings of a vLLM start: those that its log shows, and those that it leaves open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.domain.errors import Conflict, DomainError
from app.engines.logs.arguments import Arguments
from app.engines.logs.kinds import Found, Reads
from app.engines.logs.numbers import count
from app.engines.vllm.settings import (
    KV_CACHE_DTYPES,
    MAMBA_MODES,
    MODEL_DTYPES,
    SPECULATIVE_METHODS,
    STATE_DTYPES,
    read_settings,
)
from app.engines.vllm.versions import KNOWN_RELEASES

_RANKS = re.compile(r"\b(TP|PP|DP)(\d{1,4})")
# Names in arguments, flags and their short forms, of settings that are whole numbers.
_INTEGERS: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel_size": ("tensor_parallel_size", "tensor_parallel", "tp"),
    "pipeline_parallel_size": ("pipeline_parallel_size", "pp"),
    "decode_context_parallel_size": ("decode_context_parallel_size", "dcp"),
    "data_parallel_size": ("data_parallel_size", "dp"),
    "block_size": ("block_size",),
    "max_model_len": ("max_model_len", "max_seq_len"),
    "max_num_batched_tokens": ("max_num_batched_tokens",),
    "max_num_seqs": ("max_num_seqs",),
    "num_speculative_tokens": ("num_speculative_tokens", "num_spec_tokens"),
    "kv_cache_memory_bytes": ("kv_cache_memory_bytes", "kv_cache_memory"),
    "num_gpu_blocks_override": ("num_gpu_blocks_override",),
}
# PyTorch's names of formats that the engine's flag has under its own.
_TORCH_NAMES = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
_FLAGS = ("enable_prefix_caching", "async_scheduling", "disable_hybrid_kv_cache_manager")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "kv_cache_dtype": tuple(KV_CACHE_DTYPES),
    "dtype": MODEL_DTYPES,
    "mamba_cache_dtype": STATE_DTYPES,
    "mamba_ssm_cache_dtype": STATE_DTYPES,
    "mamba_cache_mode": MAMBA_MODES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Settings by name as the plan takes them, and what of the log is no setting of a plan.

    `tensor_ranks_shown` is None where no line names a tensor rank; `draft` names a speculation that
    is not planned (a separate draft model). `unknown` are values that the log shows and no rule
    here knows.
    """

    settings: Mapping[str, object]
    tensor_ranks_shown: int | None = None
    draft: str | None = None
    quantized: bool = False
    utilization: float | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


def known_settings(reads: Reads, arguments: Arguments, given: Mapping[str, object]) -> Known:
    """Return what is known: the request's word before the log's, lines before arguments."""
    unknown: dict[str, str] = {}
    settings = _from_arguments(arguments, unknown)
    method = (arguments.text("method") or "").lower()
    speculates = "num_speculative_tokens" in settings
    draft = method if speculates and method not in ("", *SPECULATIVE_METHODS) else None
    if speculates and method.endswith("mtp"):
        draft, method = None, "mtp"
    if speculates and method in SPECULATIVE_METHODS:
        settings["speculative_method"] = method
    if draft is not None:
        settings.pop("num_speculative_tokens")
    shown = _from_lines(reads, settings, unknown)
    settings.update({key: value for key, value in given.items() if value is not None})
    settings.pop("version", None)
    return Known(
        settings=settings,
        tensor_ranks_shown=shown,
        draft=draft,
        quantized=arguments.text("quantization") is not None,
        utilization=arguments.number("gpu_memory_utilization"),
        unknown={name: word for name, word in unknown.items() if given.get(name) is None},
    )


def _from_arguments(arguments: Arguments, unknown: dict[str, str]) -> dict[str, object]:
    """Return the settings that arguments and flags show; words of no rule go into `unknown`."""
    settings: dict[str, object] = {}
    for name, spellings in _INTEGERS.items():
        value = arguments.integer(*spellings)
        if value:
            settings[name] = value
    # A number of GiB that the engine keeps as a decimal.
    swap = arguments.number("swap_space")
    if swap is not None and swap.is_integer():
        settings["swap_space"] = int(swap)
    for name in _FLAGS:
        flag = arguments.flag(name)
        if flag is not None:
            settings[name] = flag
    for name, words in _WORDS.items():
        word = (arguments.text(name) or "").removeprefix("torch.").lower()
        word = _TORCH_NAMES.get(word, word)
        if word in words:
            settings[name] = word
        elif word:
            unknown[name] = word
    return settings


def check_together(known: Mapping[str, object], given: Mapping[str, object]) -> None:
    """Check what is known together, where no plan does it.

    Raises:
        Conflict: for a given setting that contradicts another in every release that it may be.

    """
    version = given.get("version")
    names = (version,) if version is not None else reversed(KNOWN_RELEASES)
    refusal: Conflict | None = None
    known = {"tensor_parallel_size": known.get("decode_context_parallel_size", 1), **known}
    for name in names:
        try:
            read_settings({**known, "version": name})
        except Conflict as error:
            refusal = refusal or error
        except DomainError:
            # A value of the log's own, which no given setting is to blame for.
            return
        else:
            return
    if refusal is not None and refusal.field and refusal.field[0] in given:
        raise refusal


# Lines that name the longest request, the later ones before the earlier: code, group, factor.
_LENGTHS = (
    ("concurrency_loose", 0, 1024),
    ("length", 0, 1),
    ("auto_fit", 1, 1),
    ("too_long", 0, 1),
    ("needed", 0, 1),
    ("needed_alone", 1, 1),
    ("concurrency_at", 1, 1),
    ("concurrency", 0, 1),
)


def _from_lines(reads: Reads, settings: dict[str, object], unknown: dict[str, str]) -> int | None:
    """Add what lines say to the settings; return the tensor ranks that prefixes show."""
    batched = _first_count(reads.get("batched", ()))
    if batched:
        settings["max_num_batched_tokens"] = batched
    for code, group, factor in _LENGTHS:
        for found in reads.get(code, ()):
            value = count(found.groups[group] or "")
            if value:
                settings["max_model_len"] = value * factor
    _parallelism(reads, settings)
    _formats(reads, settings, unknown)
    for found in reads.get("mamba_mode", ()):
        if (found.groups[0] or "") in MAMBA_MODES:
            settings.setdefault("enable_prefix_caching", found.groups[0] != "none")
    if "hybrid_off" in reads:
        settings["disable_hybrid_kv_cache_manager"] = True
    for found in reads.get("override", ()):
        blocks = int(found.groups[1] or 0)
        if blocks:
            settings["num_gpu_blocks_override"] = blocks
    return _tensor_ranks(reads)


def _formats(reads: Reads, settings: dict[str, object], unknown: dict[str, str]) -> None:
    for found in reads.get("kv_dtype", ()):
        word = (found.groups[0] or "").lower()
        word = _TORCH_NAMES.get(word, word)
        if word not in KV_CACHE_DTYPES:
            unknown.setdefault("kv_cache_dtype", word)
        elif settings.get("kv_cache_dtype", "auto") == "auto":
            settings["kv_cache_dtype"] = word
    for code in ("pool_loose", "budget_loose"):
        for found in reads.get(code, ()):
            words = re.findall(r"\w{3,40}", found.line.text.lower())
            for name in (word for word in words if word in KV_CACHE_DTYPES):
                settings.setdefault("kv_cache_dtype", name)


def _parallelism(reads: Reads, settings: dict[str, object]) -> None:
    for found in reads.get("context_ranks", ()):
        _, size, _, decode = found.groups
        settings["decode_context_parallel_size"] = int(decode or size or 1)
    for found in reads.get("partition", ()):
        layers = [int(part) for part in re.findall(r"\d{1,5}", found.groups[0] or "")]
        if 1 < len(layers) <= 64:  # noqa: PLR2004 - stages of one engine
            settings.setdefault("layers_per_stage", layers)
            settings.setdefault("pipeline_parallel_size", len(layers))
    ranks = _ranks(reads, "PP")
    if ranks is not None:
        settings.setdefault("pipeline_parallel_size", ranks)


def _ranks(reads: Reads, kind: str) -> int | None:
    """Return one more than the highest rank of a kind that a prefix names."""
    seen = [
        int(number)
        for own in reads.values()
        for found in own
        for name, number in _RANKS.findall(found.line.rank or "")
        if name == kind
    ]
    return max(seen) + 1 if seen and max(seen) > 0 else None


def _tensor_ranks(reads: Reads) -> int | None:
    named = _ranks(reads, "TP")
    numbered = [
        int(found.line.rank.removeprefix("rank "))
        for own in reads.values()
        for found in own
        if found.line.rank is not None and found.line.rank.startswith("rank ")
    ]
    return named or (max(numbered) + 1 if numbered and max(numbered) > 0 else None)


def _first_count(found: Iterable[Found]) -> int | None:
    for item in found:
        return count(item.groups[0] or "")
    return None
