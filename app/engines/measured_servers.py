"""Published logs of SGLang and TensorRT-LLM against the plans."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.domain.dtypes import dtype_named
from app.domain.state import (
    FullAttention,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    StateTensor,
)
from app.engines import sglang, tensorrt_llm
from app.engines.measured import PRINTED, Case, CaseResult, Figure, reason_of, text_figure

_GIB = 2**30


def _state_of(geometry: Mapping[str, Any]) -> ModelState:
    """Return the layers of a model named in an SGLang or TensorRT-LLM log."""
    layers = geometry.get("n_layers", 64)
    if geometry.get("kv_lora_rank"):
        state = LatentAttention(
            latent_dim=geometry["kv_lora_rank"],
            rope_dim=geometry["qk_rope_head_dim"],
            index_dim=geometry.get("index_head_dim", 0),
        )
        return ModelState.of_layers([Layer(states=(state,))] * layers)
    linear = geometry.get("linear")
    if linear is not None:
        return _hybrid_state(geometry, linear, layers)
    if "bytes_per_token" in geometry:
        heads = geometry["bytes_per_token"] // (layers * 2 * 128 * 2)
        return ModelState.uniform(layers=layers, kv_heads=heads, head_dim=128)
    return ModelState.uniform(
        layers=layers, kv_heads=geometry["n_kv_heads"], head_dim=geometry["head_dim_k"],
        v_head_dim=geometry["head_dim_v"],
    )  # fmt: skip


def _hybrid_state(
    geometry: Mapping[str, Any], linear: Mapping[str, int], layers: int
) -> ModelState:
    width = linear["head_dim"]
    channels = (2 * linear["k_heads"] + linear["v_heads"]) * width
    recurrent = Recurrent(
        tensors=(
            StateTensor(name="conv", shape=(channels, linear["conv"] - 1),
                        dtype=dtype_named("bf16"), split_axis=0),
            StateTensor(name="ssm", shape=(linear["v_heads"], width, width),
                        dtype=dtype_named("fp32"), split_axis=0),
        )
    )  # fmt: skip
    attention = FullAttention(
        kv_heads=geometry["n_kv_heads"], k_dim=geometry["head_dim_k"], v_dim=geometry["head_dim_k"]
    )
    every = layers // geometry["attention_layers"]
    return ModelState.of_layers(
        [Layer(states=(recurrent if (i + 1) % every else attention,)) for i in range(layers)]
    )


def _gib(name: str, measured: float, size_bytes: int, unit: str = "GB") -> Figure:
    return Figure(
        name=name, measured=f"{measured:.2f} {unit}", computed=f"{size_bytes / _GIB:.2f} {unit}"
    )


def sglang_log(case: Case) -> CaseResult:
    """Return the lines of an SGLang start against the pools of so many tokens."""
    given = case["settings"]
    tokens = re.search(r"#tokens: (\d+)", "".join(case["log_lines"]))
    known = re.search(r"\d+\.\d+\.\d+", case["engine_version_if_known"] or "")
    settings: dict[str, object] = {
        "version": known[0] if known else None,
        "max_total_tokens": int(tokens[1]) if tokens else None,
        "page_size": given.get("page_size", 1),
        "tp_size": given.get("tp", 1),
        "max_mamba_cache_size": given.get("max_mamba_cache_size"),
        "mamba_ssm_dtype": given.get("mamba_ssm_dtype"),
        "draft_layers": int("draft_K_GB" in case["measured"]),
        "kv_cache_dtype": "fp8_e4m3" if case["geometry"].get("index_head_dim") else None,
    }
    plan = sglang.plan(None, _state_of(case["geometry"]), None, settings)
    pools = {pool.name: pool for pool in plan.pools}
    sizes = {
        "K_GB": ("full", "K"), "V_GB": ("full", "V"), "draft_K_GB": ("draft", "K"),
        "conv_GB": ("mamba", "conv"), "ssm_GB": ("mamba", "ssm"),
    }  # fmt: skip
    figures = []
    for name, measured in case["measured"].items():
        if name == "KV_GB":
            figures.append(_gib(name, measured, pools["latent"].bytes))
        else:
            pool, part = sizes[name]
            figures.append(_gib(name, measured, pools[pool].parts[part]))
    return CaseResult(
        case=case["id"],
        engine=f"SGLang {case['engine_version_if_known'] or ''}".strip(),
        model=case["model_name"],
        figures=tuple(figures),
        best=PRINTED,
        reason=reason_of(case),
        source_url=case["source_url"],
    )


def tensorrt_llm_log(case: Case) -> CaseResult:
    """Return the lines of a TensorRT-LLM start against the blocks of so much memory."""
    given, measured = case["settings"], case["measured"]
    state = _state_of(case["geometry"])
    block = given.get("tokens_per_block", 64)
    tokens = given.get("tokens")
    if "blocks" in given:
        tokens = given["blocks"] * block
    settings: dict[str, object] = {
        "backend": "cpp",
        "tokens_per_block": block,
        "max_tokens": tokens,
        "free_gpu_memory_fraction": given.get("fraction", 0.9),
    }
    free = given.get("available_GiB")
    plan = tensorrt_llm.plan(None, state, None, settings,
                             None if free is None else int(free * _GIB))  # fmt: skip
    half = tensorrt_llm.plan(None, state, None, settings | {"kv_cache_dtype": "fp8"},
                             None if free is None else int(free * _GIB))  # fmt: skip
    computed = {
        "kv_bytes": text_figure("kv_bytes", measured.get("kv_bytes"), plan.pool_bytes),
        "tokens": text_figure("tokens", measured.get("tokens"), plan.tokens),
        "blocks": text_figure("blocks", measured.get("blocks"), plan.blocks),
    }
    sizes = {"GiB": plan, "GiB_bf16": plan, "GiB_fp8": half}
    figures = [
        _gib(name, value, sizes[name].pool_bytes, "GiB") if name in sizes else computed[name]
        for name, value in measured.items()
    ]
    return CaseResult(
        case=case["id"],
        engine=f"TensorRT-LLM {case['engine_version_if_known'] or ''}".strip(),
        model=case["model_name"],
        figures=tuple(figures),
        best=PRINTED,
        reason=reason_of(case),
        source_url=case["source_url"],
    )
