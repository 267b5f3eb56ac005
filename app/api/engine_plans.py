"""`/engines/{engine}/plan`: from a checked request to an engine's plan, and from a plan to JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from app.api import engine_answers as a
from app.api.answers import Answer, notes_answer
from app.api.engines_schemas import EnginePlanRequest
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.units import bytes_text

if TYPE_CHECKING:
    from app.engines import llama_cpp, sglang, tensorrt_llm, vllm
    from app.engines.model import EngineModel
    from app.engines.request_cost import Overhead, RequestCost

AnyPlanAnswer = (
    a.VllmPlanAnswer | a.LlamaCppPlanAnswer | a.SglangPlanAnswer | a.TensorrtLlmPlanAnswer
)
Settings = Mapping[str, Any]


def _fields(source: object, into: type[Answer]) -> dict[str, object]:
    """Return those attributes of a value that a model has fields for."""
    return {name: getattr(source, name) for name in into.model_fields if hasattr(source, name)}


def _cost(fixed: int, saturating: int, slope: Fraction, since: int) -> a.RequestCostAnswer:
    return a.RequestCostAnswer(
        fixed_bytes=fixed,
        saturating_bytes=saturating,
        slope_bytes=slope.numerator,
        slope_tokens=slope.denominator,
        holds_from_tokens=since,
    )


def _request_cost(cost: RequestCost) -> a.RequestCostAnswer:
    from app.engines.side_by_side import slope_of

    return _cost(cost.fixed_bytes, cost.saturating_bytes, slope_of(cost), cost.all_full_at_tokens)


def _spent(parts: tuple[Overhead, ...]) -> list[a.SpentAnswer]:
    return [
        a.SpentAnswer(
            code=part.code, bytes=part.bytes, bytes_text=bytes_text(part.bytes), text=part.text
        )
        for part in parts
    ]


def vllm_answer(plan: vllm.VllmPlan, assumed: tuple[Note, ...]) -> a.VllmPlanAnswer:
    """Return vLLM's plan as JSON shows it."""
    concurrency = plan.max_concurrency
    return a.VllmPlanAnswer(
        version=plan.version,
        formula=plan.formula,
        formulas=list(plan.formulas),
        printed=list(plan.printed),
        spent=[
            a.SpentAnswer(
                code=part.code,
                bytes=part.size_bytes,
                bytes_text=bytes_text(part.size_bytes),
                text=part.reason,
            )
            for part in plan.spent
        ],
        request=_cost(
            plan.request.fixed_bytes,
            0,
            plan.request.slope_bytes_per_token,
            plan.request.holds_from_tokens,
        ),
        assumptions=notes_answer((*assumed, *plan.assumptions)),
        not_counted=notes_answer(plan.not_counted),
        kv_cache_dtype=plan.kv_cache_dtype,
        block_size=plan.block_size,
        max_model_len=plan.max_model_len,
        groups=[
            a.VllmGroupAnswer(
                **_fields(group, a.VllmGroupAnswer) | {"layer_names": list(group.layer_names)}
            )
            for group in plan.groups
        ],
        ranks=[
            a.VllmRankAnswer(
                **_fields(rank, a.VllmRankAnswer) | {"layers": [rank.first_layer, rank.last_layer]}
            )
            for rank in plan.ranks
        ],
        num_gpu_blocks=plan.num_gpu_blocks,
        blocks_per_request=plan.blocks_per_request,
        max_concurrency=None if concurrency is None else float(concurrency),
        max_concurrency_exact=None if concurrency is None else str(concurrency),
        max_concurrency_text=plan.max_concurrency_text,
        kv_cache_tokens=plan.kv_cache_tokens,
        needed_bytes=plan.needed_bytes,
        needed_bytes_text=bytes_text(plan.needed_bytes),
        estimated_max_model_len=plan.estimated_max_model_len,
        refused=plan.refused,
        max_sequences=plan.max_sequences,
        request_total_bytes=plan.request.total_bytes,
        request_need_bytes=plan.request.need_bytes,
        replicated_bytes=plan.replicated_bytes,
    )


def llama_cpp_answer(
    plan: llama_cpp.LlamaCppPlan, assumed: tuple[Note, ...]
) -> a.LlamaCppPlanAnswer:
    """Return llama.cpp's plan as JSON shows it."""
    recurrent = plan.recurrent
    return a.LlamaCppPlanAnswer(
        **_common(plan, assumed),
        runner=plan.runner,
        n_ctx=plan.n_ctx,
        n_ctx_seq=plan.n_ctx_seq,
        n_seq_max=plan.n_seq_max,
        kv_unified=plan.kv_unified,
        n_batch=plan.n_batch,
        n_ubatch=plan.n_ubatch,
        caches=[
            a.LlamaCppCacheAnswer(
                **_fields(cache, a.LlamaCppCacheAnswer) | {"bytes_text": bytes_text(cache.bytes)}
            )
            for cache in plan.caches
        ],
        recurrent=None
        if recurrent is None
        else a.LlamaCppRecurrentAnswer(**_fields(recurrent, a.LlamaCppRecurrentAnswer)),
        total_bytes=plan.total_bytes,
        total_bytes_text=bytes_text(plan.total_bytes),
        devices=[
            a.LlamaCppDeviceAnswer(**_fields(share, a.LlamaCppDeviceAnswer))
            for share in plan.devices
        ],
        needed_bytes=plan.needed_bytes,
        fits=plan.fits,
        largest_n_ctx=plan.largest_n_ctx,
    )


def sglang_answer(plan: sglang.SglangPlan, assumed: tuple[Note, ...]) -> a.SglangPlanAnswer:
    """Return SGLang's plan as JSON shows it."""
    return a.SglangPlanAnswer(
        **_common(plan, assumed),
        tokens=plan.tokens,
        window_tokens=plan.window_tokens,
        state_slots=plan.state_slots,
        page_size=plan.page_size,
        cell_bytes=plan.cell_bytes,
        budget_bytes=plan.budget_bytes,
        pools=[a.SglangPoolAnswer(**_fields(pool, a.SglangPoolAnswer)) for pool in plan.pools],
        pool_bytes=plan.pool_bytes,
        pool_bytes_text=bytes_text(plan.pool_bytes),
        context_tokens=plan.context_tokens,
        max_concurrency_text=plan.max_concurrency,
    )


def tensorrt_llm_answer(
    plan: tensorrt_llm.TensorrtLlmPlan, assumed: tuple[Note, ...]
) -> a.TensorrtLlmPlanAnswer:
    """Return TensorRT-LLM's plan as JSON shows it."""
    return a.TensorrtLlmPlanAnswer(
        **_common(plan, assumed),
        tokens=plan.tokens,
        blocks=plan.blocks,
        tokens_per_block=plan.tokens_per_block,
        bytes_per_token=plan.bytes_per_token,
        budget_bytes=plan.budget_bytes,
        pools=[
            a.TensorrtLlmPoolAnswer(**_fields(pool, a.TensorrtLlmPoolAnswer)) for pool in plan.pools
        ],
        pool_bytes=plan.pool_bytes,
        pool_bytes_text=bytes_text(plan.pool_bytes),
        state_bytes=plan.state_bytes,
        secondary_blocks=plan.secondary_blocks,
        context_tokens=plan.context_tokens,
        max_concurrency_text=plan.max_concurrency,
    )


def _common(plan: Any, assumed: tuple[Note, ...]) -> dict[str, Any]:
    """Return the fields that three engines' plans have alike."""
    return {
        "version": plan.version,
        "formula": plan.formula[-1],
        "formulas": list(plan.formula),
        "printed": list(plan.printed),
        "spent": _spent(plan.overheads),
        "request": _request_cost(plan.request),
        "assumptions": notes_answer((*assumed, *plan.assumptions)),
        "not_counted": notes_answer(plan.not_counted),
    }


def _vllm(model: EngineModel, settings: Settings, available: int | None) -> AnyPlanAnswer:
    from app.engines import vllm

    plan = vllm.plan(model.config, model.state, settings, available)
    return vllm_answer(plan, model.assumptions)


def _llama_cpp(model: EngineModel, settings: Settings, available: int | None) -> AnyPlanAnswer:
    from app.engines import llama_cpp

    plan = llama_cpp.plan(model.gguf, model.state, model.config, settings, available)
    return llama_cpp_answer(plan, () if model.gguf is not None else model.assumptions)


def _sglang(model: EngineModel, settings: Settings, available: int | None) -> AnyPlanAnswer:
    from app.engines import sglang

    plan = sglang.plan(model.gguf, model.state, model.config, settings, available)
    return sglang_answer(plan, model.assumptions)


def _tensorrt_llm(model: EngineModel, settings: Settings, available: int | None) -> AnyPlanAnswer:
    from app.engines import tensorrt_llm

    plan = tensorrt_llm.plan(model.gguf, model.state, model.config, settings, available)
    return tensorrt_llm_answer(plan, model.assumptions)


PLANNERS: Mapping[str, Callable[[EngineModel, Settings, int | None], AnyPlanAnswer]] = {
    "vllm": _vllm,
    "llama_cpp": _llama_cpp,
    "sglang": _sglang,
    "tensorrt_llm": _tensorrt_llm,
}


def answer_engine_plan(engine: str, request: EnginePlanRequest) -> AnyPlanAnswer:
    """Return an engine's own view of a model.

    Raises:
        DomainError: naming the field, as seen from the request's body.

    """
    from app.api.engine_models import engine_model

    model = engine_model(request.model)
    try:
        return PLANNERS[engine](model, request.settings, request.available_bytes)
    except DomainError as error:
        raise placed(error, model) from None


def placed(error: DomainError, model: EngineModel) -> DomainError:
    """Return an engine's refusal with its field seen from the request's body."""
    first = error.field[0] if error.field else ""
    if first in ("model", "available_bytes"):
        return error
    if model.gguf is not None and "." in str(first):
        return error.under("model", "gguf")
    if first in model.config:
        return error.under("model", "config")
    return error.under("settings")
