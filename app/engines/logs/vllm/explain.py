"""A vLLM log explained: what was read, computed and advised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from app.domain.notes import Note
from app.engines.logs.agreement import settled
from app.engines.logs.arguments import MODEL_FIELDS, Arguments, model_names, read_arguments
from app.engines.logs.kinds import ANY, VLLM, Reads, read_kinds
from app.engines.logs.numbers import Printed, decimal, gib_text
from app.engines.logs.result import Explained
from app.engines.logs.sentences import NO_MODEL, unknown_model
from app.engines.logs.text import LogText
from app.engines.logs.vllm.abridged import with_bare_concurrency
from app.engines.logs.vllm.advice import Wish, advice_of
from app.engines.logs.vllm.case import Case
from app.engines.logs.vllm.era import Era, era_of, numbers_of
from app.engines.logs.vllm.evidence import Evidence, evidence_of
from app.engines.logs.vllm.figures import figures_of
from app.engines.logs.vllm.fit import Shape, fit
from app.engines.logs.vllm.remarks import remarks_of
from app.engines.logs.vllm.settings import (
    Known,
    check_together,
    known_settings,
)
from app.engines.logs.vllm.starts import joined, starts_of
from app.engines.logs.vllm.working import working_of
from app.engines.model import EngineModel
from app.engines.vllm import VllmPlan
from app.engines.vllm.versions import NEWEST, release

# Finds a model by the names that a log has for it, best first; None where none is known.
ModelOf = Callable[[Sequence[str]], EngineModel | None]
_NO_FIGURES = Note(
    "no_figures",
    "no line about the cache was found; paste the start-up lines from 'Available KV cache memory'"
    " on, or the error",
)


_ABOUT_THE_CACHE = (
    "attention_block", "state_padding", "padding_layers", "forced_block", "state_blocks",
    "nothing", "out_of_memory", "free_too_small",
)  # fmt: skip


def explain_vllm(
    log: LogText,
    arguments: Arguments,
    model: EngineModel | None,
    given: Mapping[str, object],
    wish: Wish,
    known_model: ModelOf | None = None,
) -> Explained:
    """Return a vLLM log explained; `given` are settings that the log does not show.

    Where it holds several starts, each is judged by its own lines, and the last one advised;
    `known_model` finds the model of one that names another than the log does first.

    Raises:
        DomainError: for a setting in `given` that is wrong.

    """
    lines, passed_over = read_kinds(log, (*VLLM, *ANY))
    length = given.get("max_model_len") or arguments.integer("max_model_len", "max_seq_len")
    reads = with_bare_concurrency(log, lines, length if isinstance(length, int) else None)
    starts = starts_of(reads)
    if len(starts) == 1:
        return replace(_start(reads, arguments, model, given, wish), lines_passed_over=passed_over)
    answers: list[Explained] = []
    own, own_model, why = arguments, model, None
    first_names = model_names(arguments, MODEL_FIELDS)
    for start in starts:
        said = read_arguments(log, start.first, start.end)
        own = said if said.values else own
        names = model_names(said, MODEL_FIELDS)
        if known_model is not None and names and not set(names) & set(first_names):
            own_model, first_names = known_model(names), names
            why = unknown_model(names[0]) if own_model is None else None
        answers.append(_start(start.reads, own, own_model, given, wish, why))
    return replace(joined(starts, answers), lines_passed_over=passed_over)


def _start(
    reads: Reads,
    arguments: Arguments,
    model: EngineModel | None,
    given: Mapping[str, object],
    wish: Wish,
    why_no_model: Note | None = None,
) -> Explained:
    """Return one start explained; `why_no_model` says why the one that it names is not known."""
    asked = given.get("version")
    era = era_of(reads, asked if isinstance(asked, str) else None)
    known = known_settings(reads, arguments, given)
    if model is None or model.state is None or known.unknown:
        check_together(known.settings, given)
    memory = known.settings.get("kv_cache_memory_bytes")
    evidence = evidence_of(reads, memory if isinstance(memory, int) else None)
    case = _case(reads, evidence, model, known, era, given)
    if why_no_model is not None:
        case = replace(case, why_no_plan=why_no_model)
    plan = case.plan
    return Explained(
        engine="vllm",
        version_guess=era.text,
        version_used=None if plan is None else plan.version,
        model_name=None if model is None else model.name,
        figures=settled(figures_of(case)),
        advice=advice_of(case, wish),
        remarks=remarks_of(case, known, era),
        settings=dict(case.fit.settings if case.fit is not None else known.settings),
        inferred=dict(case.fit.inferred if case.fit is not None else {}),
        missing=_missing(case, known),
        assumptions=_assumptions(era, model, plan),
        formulas=working_of(case),
        implied_bytes_per_token=_implied(evidence),
    )


def _assumptions(era: Era, model: EngineModel | None, plan: VllmPlan | None) -> tuple[Note, ...]:
    if plan is None:
        return ()
    own = () if model is None else model.assumptions
    if any(name.startswith("draft.") for layers in plan.layer_specs for name in layers):
        # They are in the plan, beside the model's own layers.
        own = tuple(note for note in own if note.code != "draft_passed_over")
    if era.said is None or era.exact:
        return (*own, *plan.assumptions)
    if era.first_engine:
        note = Note(
            "first_engine",
            "the lines are the first engine's, which {said} still had beside its new one; the rules"
            " of {used} are taken, its last release as the only one",
            {"said": era.said, "used": plan.version},
        )
        return (note, *own, *plan.assumptions)
    if release(plan.version).numbers > numbers_of(era.said):
        note = Note(
            "release_before",
            "the rules of {said} are not known; those of {used} are taken, the oldest known, which"
            " came after it",
            {"said": era.said, "used": plan.version},
        )
        return (note, *own, *plan.assumptions)
    note = Note(
        "release_between",
        "the rules of {said} are not known; those of {used} are taken, the newest known before it",
        {"said": era.said, "used": plan.version},
    )
    return (note, *own, *plan.assumptions)


def _case(
    reads: Reads,
    evidence: Evidence,
    model: EngineModel | None,
    known: Known,
    era: Era,
    given: Mapping[str, object],
) -> Case:
    found, why = None, None
    if known.unknown:
        why = _unknown_value(known)
    elif model is not None and model.state is not None:
        shape = Shape(
            attention_block=_attention_block(reads),
            state_padding=_state_padding(reads),
            padding_layers=frozenset(
                f"Add {item.groups[0]} padding layers" for item in reads.get("padding_layers", ())
            ),
        )
        found, refusal = fit(model, evidence, shape, known.settings, era, known.tensor_ranks_shown)
        if found is None and refusal is not None:
            if refusal.field and refusal.field[0] in given:
                raise refusal
            why = Note(refusal.code, refusal.template, refusal.params)
            if refusal.field and refusal.field[0] == "version":
                why = _by_newest(model, evidence, shape, known, why)
    several = (
        evidence.has_several_memories
        or known.tensor_ranks_shown is not None
        or any(
            (found.settings if found is not None else known.settings).get(name, 1) != 1
            for name in ("tensor_parallel_size", "pipeline_parallel_size")
        )
    )
    return Case(
        model=model,
        reads=reads,
        evidence=evidence,
        fit=found,
        why_no_plan=why,
        several_ranks=several,
        swap_gib=swap if isinstance(swap := known.settings.get("swap_space"), int) else None,
    )


def _by_newest(
    model: EngineModel, evidence: Evidence, shape: Shape, known: Known, why: Note
) -> Note:
    """Return why the log's release has no plan, and what the newest one's rules make of its lines.

    A change was often in somebody's own build before it was in a release.
    """
    newest = Era(releases=(NEWEST,))
    found, _ = fit(model, evidence, shape, known.settings, newest, known.tensor_ranks_shown)
    if found is None or not found.agrees or not (evidence.sized or evidence.refused):
        return why
    return Note(
        "agrees_by_newest",
        "{why}. By the rules of vLLM {version} its figures agree, with a request of {fixed} and"
        " {slope} B a token: give version={version} to have them computed",
        {
            "why": why,
            "version": NEWEST,
            "fixed": gib_text(found.plan.request.fixed_bytes, 3),
            "slope": f"{float(found.plan.request.slope_bytes_per_token):,.0f}",
        },
    )


def _unknown_value(known: Known) -> Note:
    name, value = next(iter(known.unknown.items()))
    return Note(
        "unknown_value",
        "{name} is {value} in the log, which is not known here: what depends on it is not checked",
        {"name": name, "value": value[:60]},
    )


def _state_padding(reads: Reads) -> Printed | None:
    found = reads.get("state_padding")
    return decimal(found[0].groups[0] or "") if found else None


def _attention_block(reads: Reads) -> int | None:
    found = reads.get("attention_block")
    return int(found[0].groups[0] or 0) if found else None


def _missing(case: Case, known: Known) -> tuple[Note, ...]:
    missing = []
    if case.model is None:
        # With an unknown value that is why there is no plan; the model is missing beside it.
        why = None if known.unknown else case.why_no_plan
        missing.append(NO_MODEL if why is None else why)
    if known.unknown:
        missing.append(_unknown_value(known))
    if known.draft is not None:
        missing.append(
            Note(
                "draft_model",
                "the start speculates by {method}: its draft's layers are not planned here",
                {"method": known.draft},
            )
        )
    evidence = case.evidence
    if not (evidence.memories or evidence.sized or evidence.refused):
        # An error, or a line that follows from the layers alone, is about the cache too.
        if not any(code in case.reads for code in _ABOUT_THE_CACHE):
            missing.append(_NO_FIGURES)
    elif not evidence.memories and evidence.memory_bytes is None and not evidence.refused:
        missing.append(
            Note(
                "no_memory_line",
                "the line 'Available KV cache memory' is not here: what the pool was cut from"
                " cannot be checked",
            )
        )
    return tuple(missing)


def _implied(evidence: Evidence) -> tuple[Fraction, Fraction] | None:
    """Return the bytes of a token that the log's figures imply, were all layers alike."""
    memory = evidence.smallest
    tokens = evidence.tokens[0][1] if evidence.tokens else None
    if evidence.refused:
        refused = evidence.refused[0]
        low, high = refused.needed.bytes("GiB")
        return Fraction(low, refused.length), Fraction(high, refused.length)
    if evidence.too_long and tokens is None:
        tokens = evidence.too_long[0][2]
    if memory is None or not tokens or memory.printed.value <= 0:
        return None
    low, high = memory.bytes
    return Fraction(low, tokens + 16), Fraction(high, tokens)
