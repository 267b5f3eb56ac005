"""What a vLLM log shows as a whole: per rank against total, and what took the memory."""

from __future__ import annotations

from collections.abc import Iterator

from app.domain.notes import Note
from app.domain.state import LatentAttention
from app.engines.logs.numbers import decimal, gib_text
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.era import Era, numbers_of, other_forms
from app.engines.logs.vllm.failures import CHUNKED_FROM
from app.engines.logs.vllm.ranks_advice import shares_positions
from app.engines.logs.vllm.settings import Known
from app.engines.logs.vllm.stages import differ, stage_remarks
from app.engines.vllm import VllmPlan

# Activations beyond this share of the weights are the profile run's, not the model's.
_LARGE_PEAK_GIB = 4
_LARGE_BATCH = 16_384


def remarks_of(case: Case, known: Known, era: Era) -> tuple[Note, ...]:
    """Return the sentences, the most general last."""
    return (
        *_forms(case, era),
        *_ranks(case),
        *_formats(case, known),
        *_profile(case, known, era),
        *_request_cost(case),
        *_counters(case),
    )


def _forms(case: Case, era: Era) -> Iterator[Note]:
    forms = other_forms(era, case.reads)
    if forms is not None:
        yield Note(
            "forms_of_others",
            "the lines have the forms of vLLM {forms}, and {said} is named: one of the two is"
            " wrong, or the build is somebody's own",
            {"forms": forms, "said": era.said},
        )


def _setting(case: Case, name: str) -> int:
    value = (case.fit.settings if case.fit is not None else {}).get(name, 1)
    return value if isinstance(value, int) else 1


def _ranks(case: Case) -> Iterator[Note]:
    tensor = _setting(case, "tensor_parallel_size")
    plan = case.plan
    if case.several_ranks:
        yield Note(
            "per_rank",
            "every GiB in this log is one rank's: weights, activations and the"
            " memory for the cache lie on each device, and may not be added up; tokens and"
            " concurrency are the engine's as a whole",
        )
    if plan is None or case.model is None or case.model.state is None:
        return
    latent = any(
        isinstance(state, LatentAttention)
        for run in case.model.state.runs
        for state in run.layer.states
    )
    context = _setting(case, "decode_context_parallel_size")
    if latent and tensor > 1 and not shares_positions(plan):
        yield Note(
            "latent_replicated_beside_others",
            "the latent has one head: each of the {ranks} tensor ranks"
            " keeps all of it, and more ranks hold no more tokens of it",
            {"ranks": tensor},
        )
    elif latent and tensor > 1:
        yield Note(
            "latent_replicated",
            "the latent has one head: each of the {ranks} tensor ranks"
            " keeps all of it, and more ranks hold no more tokens. Decode context parallelism"
            " shares the positions out instead (here over {context})",
            {"ranks": tensor, "context": context},
        )
    elif plan.replicated_bytes and tensor > 1:
        yield Note(
            "heads_replicated",
            "there are fewer KV heads than the {ranks} tensor ranks:"
            " copies cost {copies} for a request of the full length",
            {"ranks": tensor, "copies": gib_text(plan.replicated_bytes)},
        )
    data = _setting(case, "data_parallel_size")
    if data > 1:
        yield Note(
            "dp_not_divide",
            "data parallelism does not divide the heads: each of the {ranks}"
            " replicas keeps a cache of its own",
            {"ranks": data},
        )


def _formats(case: Case, known: Known) -> Iterator[Note]:
    if case.plan is None or not known.quantized:
        return
    if case.plan.kv_cache_dtype == "auto":
        yield Note(
            "weights_not_cache",
            "quantised weights say nothing of the cache: without --kv-cache-dtype keys and values"
            " stay in the format of the activations, 16 bits",
        )


def _profile(case: Case, known: Known, era: Era) -> Iterator[Note]:
    batched = known.settings.get("max_num_batched_tokens")
    peak = [decimal(found.groups[0] or "") for found in case.reads.get("rest_peak", ())]
    results = "profile_results" in case.reads
    length = known.settings.get("max_model_len")
    if isinstance(batched, int) and batched >= _LARGE_BATCH:
        yield Note(
            "batched_tokens_took_memory",
            "the profile run works on {tokens} tokens at once"
            " (max_num_batched_tokens); its activations come off the cache's memory",
            {"tokens": f"{batched:,}"},
        )
    if any(item is not None and item.value >= _LARGE_PEAK_GIB for item in peak):
        yield Note(
            "large_activation_peak",
            "the activation peak of the profile run is large: it"
            " grows with max_num_batched_tokens, max_num_seqs and multimodal dummies",
        )
    v0 = results or "rest" in case.reads or case.evidence.too_long
    if v0 and isinstance(length, int) and batched is None:
        yield _profiled_batch(length, era)


def _profiled_batch(length: int, era: Era) -> Note:
    """Return how many tokens the first engine's profile run worked on, which took its memory.

    vLLM 0.6.0 to 0.7.3 engine/arg_utils.py: above 32,768 tokens chunked prefill comes on.
    """
    if length > CHUNKED_FROM and (era.said is None or numbers_of(era.said) >= (0, 6, 0)):
        return Note(
            "profile_batch_chunked",
            "above 32,768 tokens the first engine switched chunked prefill on by itself (0.6.0 and"
            " later): its profile run then worked on 512 tokens at once, later on 2,048, and left"
            " more memory than for a somewhat shorter length",
        )
    return Note(
        "profile_batch",
        "the first engine profiled a batch as long as max_model_len while chunked prefill was off,"
        " so a longer length left less for the cache",
    )


def _request_cost(case: Case) -> Iterator[Note]:
    plan = case.plan
    if plan is None or not plan.request.total_bytes:
        return
    yield from _fixed_and_slope(plan)
    for part in plan.spent:
        if part.size_bytes * 20 >= plan.request.total_bytes:
            yield _SPENT[part.code](gib_text(part.size_bytes, 3))


def _fixed_and_slope(plan: VllmPlan) -> Iterator[Note]:
    request = plan.request
    facts: dict[str, object] = {
        "fixed": gib_text(request.fixed_bytes, 3),
        "slope": f"{float(request.slope_bytes_per_token):,.0f}",
        "from": f"{request.holds_from_tokens:,}",
        "block": plan.block_size,
    }
    if request.fixed_bytes and request.holds_from_tokens > 1:
        yield Note(
            "fixed_and_slope",
            "from {from} tokens on, where its windows and the tokens in flight behind them are"
            " full, a request costs a fixed part and a slope: {fixed} and {slope} B a token;"
            " a shorter one takes less than the two give",
            facts,
        )
    elif request.fixed_bytes:
        yield Note(
            "fixed_and_slope",
            "a request costs a fixed part and a slope: {fixed} whatever its"
            " length and {slope} B a token, so no single figure per token holds",
            facts,
        )
    elif not differ(plan):
        yield Note(
            "slope",
            "a token costs {slope} B on each rank, in whole blocks of {block}",
            facts,
        )
    yield from stage_remarks(plan)


_SPENT = {
    "padding_layers": lambda size: Note(
        "spent_padding_layers",
        "{size} of a full-length request go to empty places of groups with fewer layers",
        {"size": size},
    ),
    "page_padding": lambda size: Note(
        "spent_page_padding",
        "{size} of a full-length request go to padding that makes all pages one size",
        {"size": size},
    ),
    "block_rounding": lambda size: Note(
        "spent_block_rounding",
        "{size} of a full-length request are the unused end of its last block",
        {"size": size},
    ),
    "window_reserve": lambda size: Note(
        "spent_window_reserve",
        "{size} of a full-length request are reserved for tokens in flight"
        " behind its windows (max_num_batched_tokens)",
        {"size": size},
    ),
    "state_copies": lambda size: Note(
        "spent_state_copies",
        "{size} of a full-length request are copies of states, for prefix caching and speculation",
        {"size": size},
    ),
    "encoder_reserve": lambda size: Note(
        "spent_encoder_reserve",
        "{size} of a full-length request are reserved for encoder"
        " positions at max_num_batched_tokens; real inputs take less",
        {"size": size},
    ),
}


def _counters(case: Case) -> Iterator[Note]:
    if case.evidence.blocks and case.evidence.concurrencies:
        yield Note(
            "counters_cumulative",
            "token counters in the metrics add up over iterations and"
            " exceed the pool; the usage gauge shows what is held now",
        )
