"""What to change in a llama.cpp context, and what it would take then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.domain.errors import DomainError
from app.domain.notes import Note
from app.engines import llama_cpp
from app.engines.llama_cpp import LlamaCppPlan
from app.engines.llama_cpp.versions import NEWEST
from app.engines.logs.llama_cpp.case import LlamaCase
from app.engines.logs.llama_cpp.failures import failed_bytes, room_advice
from app.engines.logs.result import Advice
from app.engines.logs.vllm.advice import Wish
from app.engines.model import EngineModel

_MIB = 2**20


def llama_advice(
    case: LlamaCase, model: EngineModel, settings: Mapping[str, object], wish: Wish
) -> tuple[Advice, ...]:
    """Return changes with their effects: what would have fitted, what takes less."""
    table = _Table(case, model, settings)
    failed = failed_bytes(case.reads)
    if failed is not None:
        return tuple(table.after_failure(*failed))
    if wish.context_tokens is not None or wish.concurrency is not None:
        return tuple(table.wished(wish))
    return tuple(table.smaller())


class _Table:
    """Plans of the same context with one thing changed."""

    def __init__(self, case: LlamaCase, model: EngineModel, settings: Mapping[str, object]) -> None:
        self.plan = case.plan
        self.model = model
        self.settings = settings

    def changed(
        self, changes: Mapping[str, object], available: int | None = None
    ) -> LlamaCppPlan | None:
        """Return the plan with these settings, or None where the engine refuses them."""
        try:
            return llama_cpp.plan(
                self.model.gguf,
                self.model.state,
                self.model.config,
                {**self.settings, **changes},
                available,
            )
        except DomainError:
            return None

    def _takes(self, plan: LlamaCppPlan) -> Note:
        own = self.plan.total_bytes if self.plan is not None else 0
        return Note(
            "context_takes",
            "the context then takes {size} instead of {before}",
            {"size": _mib_text(plan.total_bytes), "before": _mib_text(own)},
        )

    def smaller(self) -> Iterator[Advice]:
        """Yield changes that take less memory, each with what it comes to."""
        own = self.plan
        if own is None:
            return
        if any(note.code == "latents_as_heads" for note in own.assumptions):
            yield from self._if_less(
                {"version": NEWEST.isoformat(), "mla": None},
                Note("newer_build", "a build and a file made since 2025-04-15"),
            )
        quantised = {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": True}
        yield from self._if_less(
            quantised,
            Note("cache_types", "--cache-type-k q8_0 --cache-type-v q8_0 (with flash attention)"),
        )
        if own.n_ctx > 512:  # noqa: PLR2004 - nothing to halve below two paddings
            half = own.n_ctx // 2
            yield from self._if_less(
                {"n_ctx": half}, Note("ctx_size", "--ctx-size {tokens}", {"tokens": half})
            )
        if any(cache.window is not None for cache in own.caches):
            yield from self._if_less(
                {"n_ubatch": 128}, Note("ubatch_size", "--ubatch-size {tokens}", {"tokens": 128})
            )
            yield from self._if_less({"swa_full": False}, Note("swa_full", "without --swa-full"))
        if own.n_seq_max > 1:
            yield from self._if_less({"n_seq_max": 1}, Note("parallel", "--parallel 1"))

    def _if_less(self, changes: Mapping[str, object], change: Note) -> Iterator[Advice]:
        plan = self.changed(changes)
        if plan is not None and self.plan is not None and plan.total_bytes < self.plan.total_bytes:
            yield Advice(change=change, effect=self._takes(plan))

    def after_failure(self, asked: int, free: int | None) -> Iterator[Advice]:
        """Yield the smallest changes that would have fitted, where the log says what was free."""
        own = self.plan
        if own is None:
            return
        # What failed may be one device's part; the room is what the same share would have had.
        room = free if free is not None else None
        if room is not None:
            fitted = self.changed({}, room)
            if fitted is not None and fitted.largest_n_ctx is not None:
                yield Advice(
                    change=Note(
                        "ctx_size", "--ctx-size {tokens}", {"tokens": fitted.largest_n_ctx}
                    ),
                    effect=Note(
                        "largest_context",
                        "the largest context whose cache alone fits the"
                        " {free} that were free, before weights and compute buffers",
                        {"free": _mib_text(room)},
                    ),
                )
        if asked:
            yield room_advice(asked)
        yield from self.smaller()

    def wished(self, wish: Wish) -> Iterator[Advice]:
        """Yield what the wanted length and slots take."""
        own = self.plan
        if own is None:
            return
        slots = wish.concurrency or own.n_seq_max
        length = wish.context_tokens or own.n_ctx_seq
        changes = {"n_ctx": length * slots, "n_seq_max": slots}
        plan = self.changed(changes)
        if plan is not None:
            yield Advice(
                change=Note(
                    "ctx_and_parallel",
                    "--ctx-size {tokens} --parallel {slots}",
                    {"tokens": length * slots, "slots": slots},
                ),
                effect=self._takes(plan),
            )


def _mib_text(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.2f} MiB"
