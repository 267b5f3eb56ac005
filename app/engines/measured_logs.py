"""Published logs of llama.cpp, its fork, Ollama, SGLang and TensorRT-LLM against the plans.

A log names its model and settings in words; this module turns them into the header or the layers
that the plan takes. What a log leaves unsaid (a build's day, a split over devices) is taken from
the form of its lines, and said in the case's reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.engines import llama_cpp
from app.engines.measured import (
    PRINTED,
    Case,
    CaseResult,
    Figure,
    mib_figure,
    reason_of,
    text_figure,
)
from app.engines.measured_servers import sglang_log, tensorrt_llm_log

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_NOT_REPRODUCED = {
    "ik-105": "the buffer line holds the latent cache too, which this build allocates beside keys"
    " and values and prints nowhere",
}


def gguf_of(case: Case) -> dict[str, object]:
    """Return the header that the log's geometry amounts to."""
    geometry = case["geometry"]
    arch = _architecture(case)
    kv: dict[str, object] = {"general.architecture": arch}

    def put(suffix: str, value: object) -> None:
        if value is not None:
            kv[f"{arch}.{suffix}"] = value

    heads = geometry.get("n_kv_heads", 0)
    key = geometry.get("head_dim_k", 0)
    value = geometry.get("head_dim_v", key)
    put("block_count", geometry["n_layers"])
    put("context_length", 2**20)
    put("attention.head_count", heads if isinstance(heads, int) else max(heads))
    put("attention.head_count_kv", heads)
    put("attention.key_length", max(key) if isinstance(key, list) else key)
    put("attention.value_length", max(value) if isinstance(value, list) else value)
    if isinstance(key, list):
        put("attention.key_length_swa", min(key))
        put("attention.value_length_swa", min(value))
    put("attention.sliding_window", geometry.get("sliding_window") or None)
    put("attention.sliding_window_pattern", geometry.get("swa_layers"))
    put("attention.shared_kv_layers", geometry.get("shared_kv_layers"))
    put("attention.kv_lora_rank", geometry.get("kv_lora_rank"))
    put("rope.dimension_count", geometry.get("qk_rope_head_dim"))
    if arch == "deepseek2" and heads == 1:
        put("attention.key_length_mla", 192)
        put("attention.value_length_mla", 128)
    if arch == "deepseek4":
        put("attention.compress_ratios", [0] * geometry["n_layers"])
        put("attention.indexer.key_length", 128)
        put("rope.dimension_count", 64)
    ssm = geometry.get("ssm")
    if ssm is not None:
        attention = geometry["attention_layers"]
        put("full_attention_interval", geometry["n_layers"] // attention)
        put("ssm.conv_kernel", ssm["d_conv"])
        put("ssm.inner_size", ssm["d_inner"])
        put("ssm.state_size", ssm["d_state"])
        put("ssm.group_count", ssm["n_group"])
    return kv


def _architecture(case: Case) -> str:
    geometry, name = case["geometry"], case["model_name"].lower()
    if geometry.get("arch"):
        return str(geometry["arch"])
    if "ssm" in geometry:
        return "qwen35"
    if "swa_layers" in geometry:
        return "gemma4"
    for word, arch in (("gpt-oss", "gpt-oss"), ("gemma-3", "gemma3"), ("gemma3", "gemma3"),
                       ("laguna", "laguna"), ("deepseek-v4", "deepseek4")):  # fmt: skip
        if word in name:
            return arch
    return "deepseek2" if geometry.get("kv_lora_rank") else "llama"


def version_of(case: Case) -> str | None:
    """Return the day or build of a llama.cpp log: as known, else by the form of its lines."""
    known = case["engine_version_if_known"] or ""
    if build := re.search(r"\bb\d{4,}", known):
        return build[0]
    year = re.search(r"20\d\d", known)
    month = re.search("|".join(_MONTHS), known)
    lines = "\n".join(case["log_lines"])
    if year and month:
        number = _MONTHS.index(month[0]) + 1
        # The 20th: the first days of April 2026 had a rule of their own.
        return f"{year[0]}-{number:02d}-20"
    if year:
        return f"{year[0]}-06-15"
    if "KV self size" in lines and "llama_kv_cache_unified" in lines:
        return "2025-05-08"
    if "KV self size" in lines or "KV buffer size" in lines:
        return "2025-01-20" if "llama_context" not in lines else "2025-04-01"
    return None


def _llama_settings(case: Case) -> dict[str, object]:
    given = case["settings"]
    settings: dict[str, object] = {"n_ctx": given.get("n_ctx", 4096)}
    names = {"n_seq": "n_seq_max", "kv_unified": "kv_unified", "n_ubatch": "n_ubatch",
             "type_k": "cache_type_k", "type_v": "cache_type_v", "swa_full": "swa_full",
             "n_rs_seq": "n_rs_seq"}  # fmt: skip
    for name, own in names.items():
        if given.get(name) is not None:
            settings[own] = given[name]
    flash = given.get("flash_attn")
    settings["flash_attn"] = bool(flash) if flash is not None else _needs_flash(case)
    if given.get("n_ctx_note") == "per sequence":
        settings["n_ctx"] = given["n_ctx"] * given["n_seq"]
    settings["n_batch"] = max(2048, given.get("n_ubatch") or 0)
    types = given.get("types", {})
    settings |= {
        own: types[name]
        for name, own in (("K", "cache_type_k"), ("V", "cache_type_v"), ("c^KV", "cache_type_k"),
                          ("kv^T", "cache_type_v"))
        if name in types
    }  # fmt: skip
    if settings.get("cache_type_v", "f16") not in {"f16", "f32", "bf16"}:
        settings["flash_attn"] = True
    if "ik_llama" in case["engine"]:
        settings["runner"] = "ik_llama.cpp"
        if case["geometry"].get("kv_lora_rank"):
            settings["mla"] = given.get("mla") or 0
    else:
        settings["version"] = version_of(case)
    return settings


def _needs_flash(case: Case) -> bool:
    """Return whether the length can only be one of flash attention; it is not in the log."""
    tokens = case["settings"].get("n_ctx", 0)
    return bool(tokens % 256 == 0)


def llama_cpp_log(case: Case) -> CaseResult:
    """Return a published llama.cpp log against the plan: sizes, parts, cells and whole devices."""
    plan = llama_cpp.plan(gguf_of(case), None, None, _llama_settings(case))
    measured = case["measured"]
    figures: list[Figure] = []
    if "MiB" in measured and "parts" not in measured:
        figures.append(_whole_mib("total", measured["MiB"], plan.total_bytes))
    elif "MiB" in measured:
        figures.append(mib_figure("KV self size", measured["MiB"], plan.total_bytes))
        own = plan.caches[0]
        sizes = {"K": own.k_bytes, "V": own.v_bytes, "c^KV": own.k_bytes, "kv^T": own.v_bytes}
        figures += [mib_figure(name, size, sizes[name]) for name, size in measured["parts"].items()]
    if "cells_total" in measured:
        total = plan.n_ctx if not plan.kv_unified else plan.caches[0].cells
        figures.append(text_figure("cells in all", measured["cells_total"], total))
    if "swa_cells" in measured:
        figures.append(text_figure("SWA cells", measured["swa_cells"], plan.caches[1].cells))
    caches = [cache for cache in plan.caches if cache.bytes]
    for wanted, cache in zip(measured.get("caches", []), caches, strict=False):
        figures += _cache_figures(wanted, cache)
    if "rs" in measured:
        figures += _state_figures(measured["rs"], plan)
    figures += _device_figures(case, plan)
    return CaseResult(
        case=case["id"],
        engine=case["engine"],
        model=case["model_name"],
        figures=tuple(figures),
        best=PRINTED,
        reason=_NOT_REPRODUCED.get(case["id"], reason_of(case)),
        source_url=case["source_url"],
    )


def _whole_mib(name: str, measured: float, size_bytes: int) -> Figure:
    return Figure(name=name, measured=f"{measured:g} MiB", computed=f"{size_bytes / 2**20:g} MiB")


def _cache_figures(wanted: Mapping[str, Any], cache: llama_cpp.CachePlan) -> list[Figure]:
    figures = [mib_figure(f"{cache.name} size", wanted["MiB"], cache.bytes)]
    if "K" in wanted:
        figures.append(mib_figure(f"{cache.name} K", wanted["K"], cache.k_bytes))
        figures.append(mib_figure(f"{cache.name} V", wanted["V"], cache.v_bytes))
    if "cells" in wanted:
        figures.append(text_figure(f"{cache.name} cells", wanted["cells"], cache.cells))
    return figures


def _state_figures(wanted: Mapping[str, float], plan: llama_cpp.LlamaCppPlan) -> list[Figure]:
    if plan.recurrent is None:
        return [text_figure("recurrent states", wanted["MiB"], "none")]
    figures = [mib_figure("RS size", wanted["MiB"], plan.recurrent.bytes)]
    figures += [
        mib_figure(name, wanted[name], plan.recurrent.parts[name])
        for name in ("R", "S")
        if name in wanted
    ]
    return figures


def _device_figures(case: Case, plan: llama_cpp.LlamaCppPlan) -> list[Figure]:
    """Return the buffer lines: each a whole number of layers, with the padding of its backend.

    Where layers are not alike only the lines' sum can be checked.
    """
    devices = [
        (item["device"], item["MiB"]) if isinstance(item, dict) else tuple(item)
        for item in case["measured"].get("per_device") or []
    ]
    if devices and _rows_differ(case):
        total = sum(size for _, size in devices)
        whole = sum(row.buffer_bytes for row in _buffers(case, "CUDA0"))
        return [text_figure("sum of buffers", f"{total:.2f} MiB", f"{whole / 2**20:.2f} MiB")]
    figures = []
    for device, size in devices:
        name = device.removesuffix(" SWA").removesuffix(" full")
        cache = plan.caches[1 if device.endswith(" SWA") else 0]
        printed = f"{size:.2f} MiB"
        row = next(row for row in _buffers(case, name) if row.cache == cache.name)
        sizes = {
            f"{row.buffer_bytes // row.layers * count / 2**20:.2f} MiB"
            for count in range(1, cache.layers + 1)
        }
        own = printed if printed in sizes else f"{row.buffer_bytes / 2**20:.2f} MiB in all"
        figures.append(text_figure(f"{device} buffer, whole layers", printed, own))
    return figures


def _buffers(case: Case, device: str) -> tuple[llama_cpp.DeviceBytes, ...]:
    """Return what all layers take in the buffers of one such device."""
    settings = _llama_settings(case) | {"n_gpu_layers": 1024, "devices": [device]}
    return llama_cpp.plan(gguf_of(case), None, None, settings).devices


def _rows_differ(case: Case) -> bool:
    heads = case["geometry"].get("n_kv_heads")
    return isinstance(heads, list) and len(set(heads)) > 1


def ollama_log(case: Case) -> CaseResult:
    """Return a line of Ollama against its estimate or its engine."""
    given = case["settings"]
    engine = "msg=" in "".join(case["log_lines"])
    each = given["num_ctx"]
    settings = {
        "runner": "ollama-engine" if engine else "ollama-estimate",
        "num_ctx": each,
        "num_parallel": given.get("parallel", 1),
        "kv_cache_type": given.get("kv_cache_type", "f16"),
    }
    header = gguf_of(case)
    if case["model_name"].startswith("gemma3"):
        # 0.6.0 counted every layer at full length; the windows came in 0.6.3 (PR #9987).
        header = {key.replace("gemma3.", "llama."): value for key, value in header.items()} | {
            "general.architecture": "llama"
        }
    plan = llama_cpp.plan(header, None, None, settings)
    text = plan.printed[0].split('"')[-2]
    return CaseResult(
        case=case["id"],
        engine=f"Ollama {case['engine_version_if_known'] or ''}".strip(),
        model=case["model_name"],
        figures=(text_figure("memory.required.kv" if not engine else "kv cache",
                       case["measured"]["text"], text),),
        best=PRINTED,
        reason=reason_of(case),
        source_url=case["source_url"],
    )  # fmt: skip


def log_result(case: Case) -> CaseResult:
    """Return a published log of any of these engines against its plan."""
    engine = case["engine"]
    if engine == "sglang":
        return sglang_log(case)
    if engine == "tensorrt-llm":
        return tensorrt_llm_log(case)
    return ollama_log(case) if engine == "ollama" else llama_cpp_log(case)
