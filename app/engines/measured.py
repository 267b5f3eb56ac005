"""Measured cases against the plans: one row a case, as the accuracy page and the tests read it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.engines import llama_cpp
from app.engines.llama_cpp.lines import printed_mib
from app.engines.sglang.pools import Place, Pool, latent_pool, mha_pool, state_pool
from app.engines.sglang.settings import version_named

Case = Mapping[str, Any]

EXACT = "exact"
PRINTED = "to the printed digit"
EXPLAINED = "explained"
DIFFERS = "differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure and ours, both as the engine writes them."""

    name: str
    measured: str
    computed: str

    @property
    def agrees(self) -> bool:
        """Return whether they are the same."""
        return self.measured == self.computed


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """A case with its figures. `reason` says what is taken for granted or not reproduced."""

    case: str
    engine: str
    model: str
    figures: tuple[Figure, ...]
    best: str = EXACT
    reason: str = ""
    source_url: str | None = None

    @property
    def verdict(self) -> str:
        """Return how well the case is reproduced."""
        if all(figure.agrees for figure in self.figures):
            return self.best
        return EXPLAINED if self.reason else DIFFERS


_RUN_NAMES = {"n_seq": "n_seq_max", "unified": "kv_unified", "fa": "flash_attn",
              "type_k": "cache_type_k", "type_v": "cache_type_v"}  # fmt: skip
_FLAGS = ("kv_unified", "flash_attn", "swa_full")


def run_settings(case: Case) -> dict[str, object]:
    """Return the settings of a measured llama.cpp context, named as its flags."""
    given = case["settings"]
    if isinstance(given, str):
        pairs = (pair.split("=") for pair in given.split())
        given = {name: int(value) if value.isdigit() else value for name, value in pairs}
    settings: dict[str, object] = {"version": re.findall(r"\((.*)\)", case["commit"])[0]}
    for name, value in given.items():
        own = _RUN_NAMES.get(name, name)
        settings[own] = bool(value) if own in _FLAGS else value
    return settings


def llama_cpp_run(case: Case, headers: Mapping[str, Any], number: int = 0) -> CaseResult:
    """Return a measured llama.cpp context against the plan: exact bytes, or the printed lines."""
    settings = run_settings(case)
    plan = llama_cpp.plan(headers[case["model"]], None, None, settings)
    figures = []
    if "engine_bytes" in case:
        figures.append(text_figure("context bytes", case["engine_bytes"], plan.total_bytes))
    elif isinstance(case["engine_lines"][-1], int):
        figures += _self_size(case["engine_lines"], plan)
    else:
        figures += _size_lines(case["engine_lines"], plan)
    return CaseResult(
        case=f"run {number}: {case['model']} {_settings_text(case['settings'])}",
        engine=f"llama.cpp {case['commit']}",
        model=case["model"],
        figures=tuple(figures),
        best=EXACT if "engine_bytes" in case else PRINTED,
    )


def _self_size(lines: Sequence[Any], plan: llama_cpp.LlamaCppPlan) -> list[Figure]:
    """Return the figures of the one line that early versions print, for states as for a cache."""
    (total, keys, values), cells = lines
    if plan.recurrent is not None:
        parts = plan.recurrent.parts
        own_keys, own_values, own_cells = parts["R"], parts["S"], plan.recurrent.rows
    else:
        cache = plan.caches[0]
        own_keys, own_values, own_cells = cache.k_bytes, cache.v_bytes, cache.cells
    return [
        mib_figure("KV self size", total, plan.total_bytes),
        mib_figure("K", keys, own_keys),
        mib_figure("V", values, own_values),
        text_figure("kv_size", cells, own_cells),
    ]


def _settings_text(given: object) -> str:
    if isinstance(given, Mapping):
        return " ".join(f"{name}={value}" for name, value in given.items())
    return str(given)


def reason_of(case: Case) -> str:
    """Return what had to be inferred, since the log does not say it."""
    inferred = case.get("inferred")
    return f"inferred, not in the log: {inferred}" if inferred else ""


def text_figure(name: str, measured: object, computed: object) -> Figure:
    """Return a figure of numbers or words."""
    return Figure(name=name, measured=str(measured), computed=str(computed))


def mib_figure(name: str, measured: float, size_bytes: int) -> Figure:
    """Return a figure in MiB with two decimals, ours rounded as llama.cpp rounds."""
    return Figure(
        name=name, measured=f"{measured:.2f} MiB", computed=f"{printed_mib(size_bytes)} MiB"
    )


def _size_lines(lines: Sequence[Sequence[Any]], plan: llama_cpp.LlamaCppPlan) -> list[Figure]:
    figures = [text_figure("caches", len(lines), len(plan.caches))]
    for (size, cells, layers, streams), cache in zip(lines, plan.caches, strict=False):
        figures += [
            mib_figure(f"{cache.name} size", size, cache.bytes),
            text_figure(f"{cache.name} cells", cells, cache.cells),
            text_figure(f"{cache.name} layers", layers, cache.layers),
            text_figure(f"{cache.name} streams", streams, cache.streams),
        ]
    return figures


# Shapes that the measured file does not name; each follows from its figures alone, since one
# tensor's bytes fix the product of layers and widths and another tensor's check it.
_INFERRED = "shape inferred from the first figure"


def sglang_run(case: Case, number: int = 0) -> CaseResult:
    """Return a measured SGLang pool against ours, tensor by tensor."""
    version = version_named(case["version"])
    test, wanted = case["test"], case["engine_bytes"]
    reason = "" if re.search(r" l=\d", test) else _INFERRED
    sizes = [part for pool in _sglang_pools(test, wanted, version) for part in pool]
    measured = wanted if isinstance(wanted, list) else [wanted]
    return CaseResult(
        case=f"run {number}: {test}",
        engine=f"SGLang {case['version']}",
        model=test,
        figures=tuple(
            text_figure(f"tensor {index}", size, own)
            for index, (size, own) in enumerate(zip(measured, sizes, strict=True))
        ),
        reason=reason,
    )


_TORCH = {"bfloat16": "bfloat16", "float32": "float32", "float8_e4m3fn": "fp8_e4m3",
          "float8_e5m2": "fp8_e5m2"}  # fmt: skip


def _number(test: str, name: str, default: int) -> int:
    match = re.search(rf"\b{name}=(\d+)", test)
    return int(match[1]) if match else default


def _sglang_pools(
    test: str, wanted: Sequence[int] | int, version: tuple[int, ...]
) -> list[list[int]]:
    """Return the bytes of each tensor kind, pool by pool."""
    size, page = _number(test, "size", 1024), _number(test, "page", 64)
    torch = re.search(r"torch\.(\w+)", test)
    kind = _TORCH[torch[1]] if torch else "bfloat16"
    if test.startswith("Mamba"):
        return [_values(_mamba(size, kind))]
    if test.startswith("SWA"):
        return [
            [_sum(mha_pool(Place(name="pool", layers=layers, tokens=tokens, page=page), heads=4,
                           k_dim=128, v_dim=128, kind="bfloat16", version=version))]
            for layers, tokens in ((2, 1024), (1, 1280))
        ]  # fmt: skip
    if test.startswith("NSA"):
        return [_values(_sparse(test, wanted, size))]
    if test.startswith("MLA"):
        fp4 = "FP4" in test
        place = Place(name="latent", layers=_number(test, "l", 3), tokens=size, page=page)
        pool = latent_pool(place, latent=512, rope=64, kind="fp4_e2m1" if fp4 else kind)
        return [_values(pool)]
    shape = {"heads": _number(test, "h", 4), "k_dim": _number(test, "d", 128)}
    shape["v_dim"] = shape["k_dim"]
    layers = _number(test, "l", 3 if "FP4" in test else 2)
    if "k192 v128" in test:
        shape |= {"k_dim": 192, "v_dim": 128}
    place = Place(name="heads", layers=layers, tokens=size, page=page)
    kind = "fp4_e2m1" if "FP4" in test else kind
    return [_values(mha_pool(place, kind=kind, version=version, **shape))]


def _sparse(test: str, wanted: Sequence[int] | int, size: int) -> Pool:
    """Return the pool of a sparse latent model whose layers follow from its first tensor."""
    kind, row = ("fp8_e4m3", 656) if "fp8" in test else ("bfloat16", 1152)
    first = wanted if isinstance(wanted, int) else wanted[0]
    layers = first // ((size + 64) * row)
    return latent_pool(
        Place(name="latent", layers=layers, tokens=size, page=64),
        latent=512, rope=64, kind=kind, index_width=128, index_layers=layers,
    )  # fmt: skip


def _mamba(size: int, kind: str) -> Pool:
    """Return the pool of states: a gated-delta model in fp32, a state-space one in bf16."""
    layers, tail, state = (6, 3 * 10240, 48 * 128 * 128)
    if kind != "float32":
        layers, tail, state = (2, 3 * 8704, 128 * 64 * 128)
    return state_pool(
        layers=layers, slots=size, tail_elements=tail, state_elements=state, state_kind=kind
    )


def _values(pool: Pool) -> list[int]:
    return [size for _, size in pool.parts]


def _sum(pool: Pool) -> int:
    return pool.size_bytes
