"""The same layers through 26 releases: blocks, groups, concurrency and every printed line."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.errors import Unknown, Unsupported, WrongType
from app.engines.vllm.capacity import Pool, PoolSettings, fill_pool
from app.engines.vllm.printed import printed_lines
from app.engines.vllm.specs import (
    ChunkedSpec,
    FullSpec,
    LayerSpec,
    MambaSpec,
    MlaSpec,
    RequestBounds,
    SlidingSpec,
)
from app.engines.vllm.versions import KNOWN_RELEASES, NEWEST, Release, release
from tests.engines.vllm.cases import KIND_OF_TYPE, load

VERSIONS = load("vllm_versions")
CASES = [(name, case) for name, row in VERSIONS.items() for case in row["spec_cases"]]
FULL = FullSpec(block_size=16, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16")
SLIDING = SlidingSpec(
    block_size=16, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16", window=1024
)
LATENT = MlaSpec(block_size=16, k_dim=576, dtype="bfloat16")


def full(heads: int = 8, dim: int = 128) -> FullSpec:
    """Return a full layer of that many heads."""
    return FullSpec(block_size=16, kv_heads=heads, k_dim=dim, v_dim=dim, dtype="bfloat16")


def sliding(window: int, heads: int = 8, dim: int = 128) -> SlidingSpec:
    """Return a window of that width."""
    return SlidingSpec(
        block_size=16, kv_heads=heads, k_dim=dim, v_dim=dim, dtype="bfloat16", window=window
    )


def named(*runs: tuple[int, LayerSpec]) -> dict[str, LayerSpec]:
    """Return layers in order, each run's count of one spec."""
    specs = [spec for count, spec in runs for _ in range(count)]
    return {str(index): spec for index, spec in enumerate(specs)}


def mixed(total: int, every: int, few: LayerSpec, many: LayerSpec) -> dict[str, LayerSpec]:
    """Return `total` layers, every so many-th of the few kind."""
    return {str(i): few if (i + 1) % every == 0 else many for i in range(total)}


MAMBA = MambaSpec(
    block_size=262144, shapes=((3, 8192), (8192, 16)), dtypes=("bfloat16", "bfloat16"),
    mamba_type="mamba1", page_bytes_padded=327680,
)  # fmt: skip
JAMBA_FULL = FullSpec(block_size=80, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16")
FP8 = FullSpec(block_size=16, kv_heads=8, k_dim=128, v_dim=128, dtype="uint8")
CHUNKED = ChunkedSpec(block_size=16, kv_heads=8, k_dim=128, v_dim=128, dtype="bfloat16", chunk=8192)

LAYERS: dict[str, dict[str, LayerSpec]] = {
    "fa_llama3.1_8b": named((32, full())),
    "fa_llama_exact_512_blocks": named((32, full())),
    "fa_fp8": named((32, FP8)),
    "mla_deepseek_v3": named((61, LATENT)),
    "mistral_all_swa4096": named((32, sliding(4096))),
    "gemma2_9b": mixed(42, 2, full(8, 256), sliding(4096, 8, 256)),
    "gemma3_12b": mixed(48, 6, full(8, 256), sliding(1024, 8, 256)),
    "gemma3_27b": mixed(62, 6, full(16), sliding(1024, 16)),
    "gemma3_27b_hybrid_off": mixed(62, 6, full(16), sliding(1024, 16)),
    "gptoss_20b": mixed(24, 2, full(8, 64), sliding(128, 8, 64)),
    "gptoss_20b_eagle": mixed(24, 2, full(8, 64), sliding(128, 8, 64)) | {"draft": full(8, 64)},
    "full11_sw16": named((11, full()), (16, sliding(1024))),
    "full10_sw14": named((10, full()), (14, sliding(1024))),
    "full20_sw30": named((20, full()), (30, sliding(1024))),
    "llama4_chunked_on": mixed(48, 4, full(), CHUNKED),
    "jamba_like": named((28, MAMBA), (4, JAMBA_FULL)),
    "swa_half_page": named((12, full()), (12, sliding(1024, 4))),
    "varying_heads": named((8, full(3, 64)), (8, full(4, 64)), (8, full(5, 64))),
    "dcp4_mla": named((61, LATENT)),
    "not_enough_llama70b": named((80, full())),
    "not_enough_gemma27b": mixed(62, 6, full(16), sliding(1024, 16)),
    "autofit_llama70b": named((80, full())),
    "override_500": named((32, full())),
}


def pool_of(rules: Release, case: dict[str, Any]) -> Pool:
    """Return our pool for a measured case: 8192 batched tokens, scheduled asynchronously."""
    args = case["args"]
    in_flight = 16384 if rules.reserves_concurrent_batches else 8192
    settings = PoolSettings(
        release=rules,
        bounds=RequestBounds(
            max_model_len=args.get("mml", 131072),
            in_flight_tokens=in_flight,
            decode_context_parallel=args.get("dcp", 1) if rules.shards_context else 1,
        ),
        hybrid_manager=not args.get("off", False),
        blocks_override=args.get("ov"),
        auto_fit=args.get("auto", False),
    )
    return fill_pool([LAYERS[case["name"]]], [case["available_memory"]], settings)


def test_there_are_cases() -> None:
    """26 releases of 23 cases, and every name has its layers here."""
    assert len(CASES) == 26 * 23
    assert {case["name"] for _, case in CASES} == set(LAYERS)


@pytest.mark.parametrize(
    ("name", "case"), CASES, ids=lambda v: v if isinstance(v, str) else v["name"]
)
def test_every_release_plans_and_prints_the_same(name: str, case: dict[str, Any]) -> None:
    """Blocks, groups, concurrency, fitted length and lines, or the same refusal."""
    rules = release(name)
    if case.get("error", "").startswith("NotImplementedError"):
        with pytest.raises(Unsupported, match="page"):
            pool_of(rules, case)
        return
    pool = pool_of(rules, case)
    args = case["args"]
    lines = [
        line.text
        for line in printed_lines(
            pool, rules, context_parallel=args.get("dcp", 1), blocks_override=args.get("ov"),
            auto_fit=args.get("auto", False),
        )
    ]  # fmt: skip
    want = [line.removeprefix("INFO ").removeprefix("WARNING ") for line in case["log_lines"]]
    if "error" in case:
        assert pool.refusal is not None
        assert lines[-1] == case["error"].removeprefix("ValueError: ")
        return
    assert pool.refusal is None
    assert pool.num_blocks == case["num_blocks"]
    assert pool.max_model_len == case["max_model_len_after"]
    assert pool.concurrency is not None
    assert pool.concurrency.numerator / pool.concurrency.denominator == case["max_concurrency"]
    got = [[len(g.layers), g.spec.kind, g.spec.block_size, g.spec.page_bytes]
           for g in pool.grouping.groups]  # fmt: skip
    assert got == [
        [n, _kind(name, kind, case), size, page] for n, kind, size, page in case["groups"]
    ]
    extra = [line for line in lines if line.startswith(("kv cache group", "kv lcm"))]
    assert [line for line in lines if line not in extra] == want


def _kind(version: str, kind: str, case: dict[str, Any]) -> str:
    """Until 0.10.2 the latent was the full kind with a flag."""
    if case["name"] in ("mla_deepseek_v3", "dcp4_mla") and version.startswith("0.10."):
        return "mla_attention"
    return KIND_OF_TYPE[kind]


@pytest.mark.parametrize("bad", ["0.99.0", "", "1", "v0.5.0"])
def test_an_unknown_release_is_refused_with_the_known_ones(bad: str) -> None:
    """Nothing is guessed from a neighbour."""
    with pytest.raises(Unknown) as caught:
        release(bad)
    assert "0.33.0" in str(caught.value)
    assert caught.value.field == ("version",)


def test_a_release_is_named_by_a_string() -> None:
    """A number such as 0.20 would lose its zero."""
    with pytest.raises(WrongType):
        release(0.2)
    assert release("v0.33.0") == release(NEWEST)


def test_releases_are_in_order() -> None:
    """The table goes upwards, post releases after theirs."""
    numbers = [release(name).numbers for name in KNOWN_RELEASES]
    assert numbers == sorted(numbers)
