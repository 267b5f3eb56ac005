"""vLLM's own functions on layer specs: one release in depth, and the same layers through 26."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from app.accuracy.case import (
    AccuracyCase,
    Evidence,
    Figure,
    Question,
    Suite,
    outcome_of,
    settings_text,
)
from app.accuracy.data import load
from app.accuracy.vllm_rows import KIND_OF_TYPE, spec_of
from app.domain.errors import DomainError, Unsupported
from app.engines.vllm.capacity import Pool, PoolSettings, fill_pool
from app.engines.vllm.printed import printed_lines, printed_tokens
from app.engines.vllm.specs import (
    ChunkedSpec,
    FullSpec,
    LayerSpec,
    MambaSpec,
    MlaSpec,
    RequestBounds,
    SlidingSpec,
)
from app.engines.vllm.types import Layers
from app.engines.vllm.versions import Release, release
from app.web.marks import mark

Case = Mapping[str, Any]
NEWEST = "0.33.0"
_BLOCK = {"block_size": 16, "dtype": "bfloat16"}
# The measured runs through the releases had these in common.
_LENGTH, _BATCHED = 131_072, 8192


# Specs of one release


def spec_pool(case: Case) -> Pool:
    """Return our pool for a case of layer specs."""
    config, memory = case["input"]["config"], case["input"]["available_memory_bytes"]
    lookahead = config["num_prefill_lookahead_tokens"]
    workers: list[Layers] = []
    for runs in case["input"]["workers"]:
        layers: dict[str, LayerSpec] = {}
        for run in runs:
            spec = spec_of(run["spec"])
            if isinstance(spec, SlidingSpec):
                spec = replace(spec, extra_retained_tokens=max(0, lookahead - 1))
            layers |= dict.fromkeys(run["layer_names"], spec)
        workers.append(layers)
    settings = PoolSettings(
        release=release(NEWEST),
        bounds=RequestBounds(
            max_model_len=config["max_model_len"],
            in_flight_tokens=config["max_in_flight_tokens"],
            encoder_tokens=config["max_num_encoder_input_tokens"],
            decode_context_parallel=config["dcp"],
        ),
        hybrid_manager=not config["disable_hybrid_kv_cache_manager"],
        block_outermost=config["layout"].startswith("B"),
        blocks_override=config["num_gpu_blocks_override"],
        auto_fit=config["auto_fit"],
    )
    return fill_pool(workers, memory if isinstance(memory, list) else [memory], settings)


def ask_spec(case: Case) -> AccuracyCase:
    """Return one case of layer specs."""
    out, reason, figures = case["output"], "", []
    try:
        figures = _spec_figures(spec_pool(case), out)
    except DomainError as error:
        reason = str(error)
    config = case["input"]["config"]
    shown = {name: config[name] for name in ("max_model_len", "max_in_flight_tokens", "dcp")}
    return AccuracyCase(
        suite=SPECS.name,
        id=case["name"],
        engine="vllm",
        version=NEWEST,
        family="",
        model=case["name"],
        settings=settings_text(shown),
        figures=tuple(figures),
        outcome=outcome_of(figures),
        reason=reason,
    )


def _spec_figures(pool: Pool, out: Mapping[str, Any]) -> list[Figure]:
    wanted = [
        _group(KIND_OF_TYPE[spec["type"]], spec["block_size"], spec["page_size_bytes"],
               len(group["layer_names"]))
        for group in out["groups"] for spec in [group.get("spec", group)]
    ]  # fmt: skip
    groups = Figure(name="groups", measured=", ".join(wanted), computed=_groups(pool))
    if "error" in out:
        return [groups, *_refusal(out["error"], pool)]
    figures = [
        groups,
        Figure(name="blocks", measured=out["num_blocks"], computed=pool.num_blocks),
        Figure(name="longest request", unit="tokens", measured=out["max_model_len_after"],
               computed=pool.max_model_len),
    ]  # fmt: skip
    if "kv_cache_size_tokens" in out:
        figures += [
            Figure(name="cache", unit="tokens", measured=out["kv_cache_size_tokens"],
                   computed=printed_tokens(pool, release(NEWEST))),
            Figure(name="concurrency", measured=f"{out['max_concurrency']:.6f}",
                   computed=_concurrency(pool)),
        ]  # fmt: skip
    return figures


def _group(kind: str, block_size: int, page_bytes: int, layers: int) -> str:
    return f"{layers} × {kind} of {block_size} in {page_bytes} B"


def _groups(pool: Pool) -> str:
    return ", ".join(
        _group(g.spec.kind, g.spec.block_size, g.spec.page_bytes, len(g.layers))
        for g in pool.grouping.groups
    )


def _concurrency(pool: Pool) -> str:
    found = pool.concurrency
    return "none" if found is None else f"{found.numerator / found.denominator:.6f}"


def _refusal(words: str, pool: Pool) -> list[Figure]:
    """Return the length that would fit, as the engine's error estimates it and as we do."""
    estimated = re.search(r"estimated maximum model length is (\d+)", words)
    own = None if pool.refusal is None else pool.refusal.estimated_max_model_len
    measured = int(estimated[1]) if estimated else words[:80]
    return [Figure(name="length that fits, of a refused start", unit="tokens", measured=measured,
                   computed=own)]  # fmt: skip


# The same layers through the releases


def _full(heads: int = 8, dim: int = 128, dtype: str = "bfloat16", block: int = 16) -> FullSpec:
    return FullSpec(block_size=block, kv_heads=heads, k_dim=dim, v_dim=dim, dtype=dtype)


def _sliding(window: int, heads: int = 8, dim: int = 128) -> SlidingSpec:
    return SlidingSpec(**_BLOCK, kv_heads=heads, k_dim=dim, v_dim=dim, window=window)  # type: ignore[arg-type]


def _named(*runs: tuple[int, LayerSpec]) -> dict[str, LayerSpec]:
    specs = [spec for count, spec in runs for _ in range(count)]
    return {str(index): spec for index, spec in enumerate(specs)}


def _mixed(total: int, every: int, few: LayerSpec, many: LayerSpec) -> dict[str, LayerSpec]:
    return {str(i): few if (i + 1) % every == 0 else many for i in range(total)}


_LATENT = MlaSpec(block_size=16, k_dim=576, dtype="bfloat16")
_CHUNKED = ChunkedSpec(block_size=16, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16",
                       chunk=8192)  # fmt: skip
_MAMBA = MambaSpec(
    block_size=262144, shapes=((3, 8192), (8192, 16)), dtypes=("bfloat16", "bfloat16"),
    mamba_type="mamba1", page_bytes_padded=327680,
)  # fmt: skip
_GEMMA27 = _mixed(62, 6, _full(16), _sliding(1024, 16))
_OSS20 = _mixed(24, 2, _full(8, 64), _sliding(128, 8, 64))
LAYERS: Mapping[str, Mapping[str, LayerSpec]] = {
    "fa_llama3.1_8b": _named((32, _full())),
    "fa_llama_exact_512_blocks": _named((32, _full())),
    "fa_fp8": _named((32, _full(dtype="uint8"))),
    "mla_deepseek_v3": _named((61, _LATENT)),
    "mistral_all_swa4096": _named((32, _sliding(4096))),
    "gemma2_9b": _mixed(42, 2, _full(8, 256), _sliding(4096, 8, 256)),
    "gemma3_12b": _mixed(48, 6, _full(8, 256), _sliding(1024, 8, 256)),
    "gemma3_27b": _GEMMA27,
    "gemma3_27b_hybrid_off": _GEMMA27,
    "gptoss_20b": _OSS20,
    "gptoss_20b_eagle": _OSS20 | {"draft": _full(8, 64)},
    "full11_sw16": _named((11, _full()), (16, _sliding(1024))),
    "full10_sw14": _named((10, _full()), (14, _sliding(1024))),
    "full20_sw30": _named((20, _full()), (30, _sliding(1024))),
    "llama4_chunked_on": _mixed(48, 4, _full(), _CHUNKED),
    "jamba_like": _named((28, _MAMBA), (4, _full(block=80))),
    "swa_half_page": _named((12, _full()), (12, _sliding(1024, 4))),
    "varying_heads": _named((8, _full(3, 64)), (8, _full(4, 64)), (8, _full(5, 64))),
    "dcp4_mla": _named((61, _LATENT)),
    "not_enough_llama70b": _named((80, _full())),
    "not_enough_gemma27b": _GEMMA27,
    "autofit_llama70b": _named((80, _full())),
    "override_500": _named((32, _full())),
}


def release_pool(rules: Release, case: Case) -> Pool:
    """Return our pool of a case in a release: 8192 batched tokens, scheduled asynchronously."""
    args = case["args"]
    batches = 2 if rules.reserves_concurrent_batches else 1
    settings = PoolSettings(
        release=rules,
        bounds=RequestBounds(
            max_model_len=args.get("mml", _LENGTH),
            in_flight_tokens=batches * _BATCHED,
            decode_context_parallel=args.get("dcp", 1) if rules.shards_context else 1,
        ),
        hybrid_manager=not args.get("off", False),
        blocks_override=args.get("ov"),
        auto_fit=args.get("auto", False),
    )
    return fill_pool([LAYERS[case["name"]]], [case["available_memory"]], settings)


def ask_release(version: str, case: Case) -> AccuracyCase:
    """Return one set of layers in one release."""
    reason, figures = "", []
    try:
        figures = _release_figures(version, case)
    except DomainError as error:
        reason = str(error)
    return AccuracyCase(
        suite=RELEASES.name,
        id=f"{version}: {case['name']}",
        engine="vllm",
        version=version,
        family="",
        model=case["name"],
        settings=settings_text({"available": case["available_memory"], **case["args"]}),
        figures=tuple(figures),
        outcome=outcome_of(figures),
        reason=reason,
    )


def _release_figures(version: str, case: Case) -> list[Figure]:
    rules, words = release(version), case.get("error", "")
    try:
        pool = release_pool(rules, case)
    except Unsupported:
        if words.startswith("NotImplementedError"):
            return [Figure(name="start", measured="refused", computed="refused")]
        raise
    if words:
        return _refusal(words, pool)
    found = pool.concurrency
    concurrency = None if found is None else str(found.numerator / found.denominator)
    wanted = [line.removeprefix("INFO ").removeprefix("WARNING ") for line in case["log_lines"]]
    args = case["args"]
    printed = printed_lines(
        pool, rules, context_parallel=args.get("dcp", 1), blocks_override=args.get("ov"),
        auto_fit=args.get("auto", False),
    )  # fmt: skip
    # Lines of the debugging level were not recorded.
    lines = [
        line.text for line in printed if not line.text.startswith(("kv cache group", "kv lcm"))
    ]
    return [
        Figure(name="blocks", measured=case["num_blocks"], computed=pool.num_blocks),
        Figure(name="concurrency", measured=str(case["max_concurrency"]), computed=concurrency),
        Figure(name="longest request", unit="tokens", measured=case["max_model_len_after"],
               computed=pool.max_model_len),
        Figure(name="lines", measured=" | ".join(wanted), computed=" | ".join(lines)),
    ]  # fmt: skip


def _specs() -> list[Question]:
    return [partial(ask_spec, case) for case in load(SPECS.file)]


def _releases() -> list[Question]:
    return [
        partial(ask_release, version, case)
        for version, row in load(RELEASES.file).items()
        for case in row["spec_cases"]
    ]


SPECS = Suite(
    name="vllm_specs",
    engine="vllm",
    title=mark("vLLM's planning on layer specs"),
    what=mark("vLLM 0.33.0's own functions: groups, pages, blocks, tokens, concurrency."),
    evidence=Evidence.RUN,
    file="vllm_spec_cases",
    questions=_specs,
)
RELEASES = Suite(
    name="vllm_releases",
    engine="vllm",
    title=mark("The same layers through 26 releases of vLLM"),
    what=mark("Blocks, concurrency and every printed line, from 0.10.0 on."),
    evidence=Evidence.RUN,
    file="vllm_versions",
    questions=_releases,
)
