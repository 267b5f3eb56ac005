"""What would make a load fit: the fewest devices, and single changes, each tried in full."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from app.api.fit_compute import FitParts, compute_fit, fits_surely, least_state
from app.api.fit_schemas import DEFAULT_UTILISATION, FitRequest
from app.domain.errors import DomainError
from app.domain.notes import Note
from app.domain.units import bytes_text

MAX_DEVICES = 64
MAX_TRIES = 400
# Advice is given on the way; an answer may not wait longer for it.
ADVICE_SECONDS = 2.0
MORE_UTILISATION = 0.97
FEWER_BATCH_TOKENS = 2048
# A row that every format divides: more bytes than elements are more than 8 bits an element.
ROW = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a request: what it buys, what it costs, and whether the load fits then."""

    field: str
    value: Any
    fits: bool | None
    max_concurrency: int
    max_context: int
    buys: Note
    costs: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The fewest devices on which the load fits for certain, and how the model is split on them."""

    count: int
    tensor: int
    pipeline: int


def _nothing() -> None:
    """Let the search go on."""


@dataclass(slots=True, kw_only=True)
class Patience:
    """How long to look for advice; `look` is called before each try and may raise to stop."""

    look: Callable[[], None] = _nothing
    ends_at: float = field(default_factory=lambda: time.monotonic() + ADVICE_SECONDS)
    has_ended: bool = False

    def lasts(self) -> bool:
        """Return whether there is time for another try; let others run in between."""
        self.look()
        time.sleep(0)
        self.has_ended = self.has_ended or time.monotonic() >= self.ends_at
        return not self.has_ended

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return a sentence where the search was cut short."""
        if not self.has_ended:
            return ()
        return (Note("advice_cut", "The search for changes and for the fewest devices was ended "
                     "after {seconds} s: there may be more than it found.",
                     {"seconds": f"{ADVICE_SECONDS:g}"}),)  # fmt: skip


def changes(
    request: FitRequest, parts: FitParts, patience: Patience | None = None
) -> tuple[Change, ...]:
    """Return single changes in order of how little they take away; the first that fits is least.

    A change that wins nothing is left out. Drawn lengths play no part in whether the load fits.
    """
    patience = patience or Patience()
    found = []
    for name, value, costs in _candidates(request, parts):
        if not patience.lasts():
            break
        try:
            after = compute_fit(request.model_copy(update={"lengths": None, name: value}))
        except DomainError:
            continue
        if _gains(parts, after):
            found.append(_change(name, value, costs, parts, after))
    return tuple(found)


def _gains(before: FitParts, after: FitParts) -> bool:
    """Return whether a change leaves more room, asks for less, or lets more fit."""
    old, new = before.answer, after.answer
    return (
        new.fits is not old.fits
        or new.room - new.needed_bytes > old.room - old.needed_bytes
        or new.max_concurrency > old.max_concurrency
        or new.max_context > old.max_context
    )


def _change(name: str, value: Any, costs: Note, before: FitParts, after: FitParts) -> Change:
    room = after.answer.room - before.answer.room
    asked = before.answer.needed_bytes - after.answer.needed_bytes
    buys = Note(
        "buys",
        "{room} more room and {asked} less asked for on the deciding rank.",
        {"room": bytes_text(room), "asked": bytes_text(asked)},
    )
    return Change(
        field=name,
        value=value,
        fits=after.answer.fits,
        max_concurrency=after.answer.max_concurrency,
        max_context=after.answer.max_context,
        buys=buys,
        costs=costs,
    )


def _candidates(request: FitRequest, parts: FitParts) -> Iterator[tuple[str, Any, Note]]:
    answer = parts.answer
    is_free = request.measured.state is None
    if is_free and (request.utilisation or DEFAULT_UTILISATION) < MORE_UTILISATION:
        yield (
            "utilisation",
            MORE_UTILISATION,
            Note("cost_utilisation", "Less is left for other processes; a peak can fail."),
        )
    if is_free and request.batch_tokens > FEWER_BATCH_TOKENS:
        yield (
            "batch_tokens",
            FEWER_BATCH_TOKENS,
            Note("cost_batch_tokens", "Long prompts take more steps: the first token comes later."),
        )
    base = parts.given.formats.base
    if base is not None and base.key.bytes_for(ROW) > ROW and request.element_bytes is None:
        yield (
            "kv_dtype",
            "fp8",
            Note(
                "cost_kv_dtype", "Keys and values lose precision; kernels must support the format."
            ),
        )
    if 0 < answer.max_context < answer.load.tokens:
        yield (
            "context_tokens",
            answer.max_context,
            Note("cost_context", "Requests longer than that are refused."),
        )
    if 0 < answer.max_concurrency < answer.load.concurrency:
        yield (
            "concurrency",
            answer.max_concurrency,
            Note("cost_concurrency", "The other requests wait."),
        )
    if is_free and request.count is None:
        for times in (2, 4, 8):
            tensor = request.tensor_parallel * times
            if tensor * request.pipeline_parallel <= MAX_DEVICES:
                yield (
                    "tensor_parallel",
                    tensor,
                    Note(
                        "cost_tensor_parallel",
                        "{devices} devices a replica, and more communication in every layer.",
                        {"devices": tensor * request.pipeline_parallel},
                    ),
                )


def fewest_devices(
    request: FitRequest, parts: FitParts, patience: Patience | None = None
) -> Devices | None:
    """Return the fewest devices of a replica on which the load fits for certain, at most 64.

    Tried are all ways to split so many devices into tensor ranks and stages, most tensor ranks
    first. None where no way fits, or where figures of one rank are given, which would change.
    """
    measured = request.measured
    if measured.state is not None or measured.weights is not None or parts.weights is None:
        return None
    if request.weights is not None and request.weights.bytes_per_rank is not None:
        return None
    patience = patience or Patience()
    usable = max(parts.budget.usable(parts.budget.memory.low_bytes), 1)
    together = parts.weights.total_bytes + least_state(request, parts)
    least = max(1, -(-together // usable))
    tries = 0
    layers = parts.given.reading.state.num_layers
    for count in range(least, MAX_DEVICES + 1):
        for tensor in sorted((n for n in range(1, count + 1) if count % n == 0), reverse=True):
            stages = count // tensor
            if stages > layers:
                continue
            tries += 1
            if tries > MAX_TRIES or not patience.lasts():
                return None
            if _fits_on(request, tensor, stages):
                return Devices(count=count, tensor=tensor, pipeline=stages)
    return None


def _fits_on(request: FitRequest, tensor: int, stages: int) -> bool:
    update = {"tensor_parallel": tensor, "pipeline_parallel": stages, "layers_per_stage": None,
              "count": None, "decode_context_parallel": 1, "lengths": None}  # fmt: skip
    try:
        return fits_surely(request.model_copy(update=update))
    except DomainError:
        return False
