"""How the three ledgers came about, group by group, and what they took for granted."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.formats import StateGroup
from app.domain.lengths import RequestLengths
from app.domain.notes import Note
from app.domain.per_token import Shape
from app.domain.state import CrossAttention, LatentAttention, Recurrent
from app.domain.working import Working, fixed_term, plural, position_term

PAGED_SOURCE = "PagedAttention, arXiv:2309.06180, section 4: whole blocks of b positions"
MAX_TERMS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPositions:
    """What the requests hold in a group of layers: positions, the most of one request, blocks."""

    group: StateGroup
    kept: int
    longest: int
    blocks: int


def ledger_workings(
    shape: Shape,
    held: tuple[GroupPositions, ...],
    lengths: RequestLengths,
    block_size: int,
    totals: tuple[int, int, int],
    blocks: int,
) -> dict[str, Working]:
    """Return the working of the three totals: short where all layers hold alike, else by group."""
    effective, padded, paged = totals
    if not shape.window_bytes and not shape.fixed_bytes and shape.growth_tokens == 1:
        slope = f"{shape.bytes_per_token} B/token"
        tokens, requests = lengths.tokens, plural(lengths.requests, "request")
        numbers = (
            f"{slope} × {plural(tokens, 'token')} = {effective} B",
            f"{slope} × {requests} × {plural(lengths.longest, 'token')} = {padded} B",
            f"{slope} × {plural(block_size, 'token')} × {plural(blocks, 'block')} = {paged} B",
        )
        symbols = ("c × ΣT", "c × B × max T", "c × b × Σ⌈T / b⌉")
    else:
        begun = plural(lengths.non_empty, "request")
        everyone = plural(lengths.requests, "request")
        numbers = (
            _sum(shape, held, effective, [f"{item.kept} positions" for item in held], begun),
            _sum(
                shape,
                held,
                padded,
                [f"{lengths.requests} × {item.longest} positions" for item in held],
                everyone,
            ),
            _sum(
                shape,
                held,
                paged,
                [f"{item.blocks} blocks × {block_size} positions" for item in held],
                begun,
            ),
        )
        symbols = (
            "Σ over layers of bytes of a position × positions held + fixed parts",
            "Σ over layers of bytes of a position × B × most positions held + B × fixed parts",
            "Σ over layers of bytes of a position × b × blocks held + fixed parts",
        )
    sources = (
        "what each layer keeps of each request, by its own rule",
        "a rectangle in each layer, as long as the request that holds most there",
        PAGED_SOURCE,
    )
    names = ("effective_bytes", "padded_bytes", "paged_bytes")
    return {
        name: Working(symbols=symbol, numbers=text, result=result, unit="B", source=source)
        for name, symbol, text, result, source in zip(
            names, symbols, numbers, totals, sources, strict=True
        )
    }


def _sum(
    shape: Shape,
    held: tuple[GroupPositions, ...],
    total: int,
    positions: list[str],
    requests: str,
) -> str:
    """Return the sum of what each group holds, its terms bounded in number."""
    terms = [
        f"({position_term(item.group)}) × {count}"
        for item, count in zip(held, positions, strict=True)
    ]
    constant = [group for group in shape.groups if group.fixed_bytes]
    terms += [f"{requests} × ({fixed_term(group)})" for group in constant]
    if len(terms) > MAX_TERMS:
        terms = [*terms[:MAX_TERMS], f"… {len(terms) - MAX_TERMS} more"]
    return f"{' + '.join(terms) or '0'} = {total} B"


ALWAYS_ASSUMED = (
    Note("no_sharing", "No block is shared between requests."),
    Note("one_device", "Everything lies on one device; ranks are not divided here."),
    Note("forwarded", "A length counts tokens that have gone through the model."),
)


def ledger_assumptions(shape: Shape, block_size: int) -> tuple[Note, ...]:
    """Return what the ledgers took for granted for these kinds of state."""
    notes = list(ALWAYS_ASSUMED)
    states = [group.state for group in shape.groups]
    kinds = {state.kind for state in states}
    windowed = any(isinstance(s, LatentAttention) and s.window is not None for s in states)
    if kinds == {"full_attention"}:
        notes.insert(0, Note("full_attention", "Every layer attends to every earlier position."))
    if windowed or kinds & {"sliding_window", "chunked_attention"}:
        notes.append(
            Note(
                "window_blocks",
                "A windowed layer is given the fewest blocks of {block_size} that hold its "
                "positions; blocks aligned to the sequence can take one more.",
                {"block_size": block_size},
            )
        )
    if "chunked_attention" in kinds:
        notes.append(
            Note(
                "chunk_boundary",
                "A chunked layer holds the positions since its last boundary: none at a multiple "
                "of the chunk, and the most one token before.",
            )
        )
    if any(isinstance(state, CrossAttention) for state in states):
        notes.append(
            Note(
                "cross_blocks", "The encoder's positions are held once a request, in whole blocks."
            )
        )
    if any(isinstance(state, Recurrent) for state in states):
        notes.append(
            Note(
                "recurrent_not_paged",
                "A recurrent state is held whole, in its own formats, not paged by tokens.",
            )
        )
    if any(
        isinstance(group.state, LatentAttention) and group.format.key != group.format.value
        for group in shape.groups
    ):
        notes.append(
            Note("latent_format", "A latent layer keeps one vector, in the format given for keys.")
        )
    return tuple(notes)
