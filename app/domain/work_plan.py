"""A model priced per token, per pair and per pass: what its passes multiply and read.

Counted: matrix products of projections, MLP and logits, and the two products of attention
(q · K and weights · V). What a model's source does not say is left out and named.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.checks import checked_int
from app.domain.dtypes import DType
from app.domain.errors import Conflict, FieldPath
from app.domain.formats import KvFormats, placed_layers
from app.domain.notes import Note
from app.domain.pairs import Chunked, Constant, Growing, Sight
from app.domain.projections import AttentionState, ProjectionShape
from app.domain.state import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    KvFormat,
    LatentAttention,
    Layer,
    ModelState,
    Recurrent,
    Shared,
    SlidingWindow,
)

MAX_MATRIX_WEIGHTS = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class PairGroup:
    """`count` layers whose queries read rows by the same rule, at the same price."""

    count: int
    sight: Sight
    macs_per_pair: int
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan:
    """A model priced per token, per pair and per pass; lengths come later.

    `token_macs` belong to every position computed, `logits_macs` to a pass, and both are weights
    that every pass reads (`weights_bytes`). `encoder_macs` turn the encoder's output into keys and
    values: once with a cache, in every pass without, and there `encoder_weights_bytes` are read.
    `recurrent_bytes` are read by every pass that continues a sequence.
    """

    groups: tuple[PairGroup, ...]
    token_macs: int
    encoder_macs: int
    logits_macs: int
    weights_bytes: int
    encoder_weights_bytes: int
    recurrent_bytes: int
    assumptions: tuple[Note, ...]
    not_counted: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedMatrices:
    """Matrices as a model's own list of weights has them, in place of those that a shape implies.

    `token_weights` are passed by every position and `logits_weights` by the last of a pass;
    `read_bytes` is what both take as they are stored. Of experts, those of one token.
    """

    token_weights: int
    logits_weights: int
    read_bytes: int

    def __post_init__(self) -> None:
        for name in ("token_weights", "logits_weights", "read_bytes"):
            checked_int(getattr(self, name), name, low=0, high=MAX_MATRIX_WEIGHTS)


def plan_work(
    model: ModelState,
    formats: KvFormats,
    shape: ProjectionShape,
    weight_format: DType,
    *,
    counted: CountedMatrices | None = None,
) -> WorkPlan:
    """Return the prices of a model's work; `counted` matrices replace the shape's.

    Raises:
        Missing: for latent layers when the number of query heads is not known.
        Conflict: for query heads that do not divide over KV heads, per-layer sizes of another
            number of layers, or layers that share in a circle.
        Unsupported: when weights or rows do not divide into their format's blocks.

    """
    shape.check_layers(model.num_layers)
    layers = list(model.layers)
    kept_in = [
        layer_format
        for _, _, layer_format, count in placed_layers(model, formats)
        for _ in range(count)
    ]
    counts: dict[tuple[Sight, int, int], int] = {}
    token_macs = encoder_macs = encoder_weights = recurrent_bytes = 0
    for index, layer in enumerate(layers):
        token_macs += shape.mlp_weights(index)
        recurrent_bytes += sum(s.fixed_bytes() for s in layer.states if isinstance(s, Recurrent))
        asked = False
        for state, state_format, owns in _attended(layers, kept_in, index):
            heads = shape.query_heads_of(index, state)
            # Several latent states of a layer are read by the same queries, which count once;
            # index keys alone are read by none of them.
            asks = True
            if isinstance(state, LatentAttention):
                asks = state.latent_dim > 0 and not asked
                asked = asked or asks
            token_macs += shape.token_weights(state, heads, owns_cache=owns, asks=asks)
            key = (_sight(state), _pair_macs(state, heads), state.bytes_per_position(state_format))
            counts[key] = counts.get(key, 0) + 1
            if owns and isinstance(state, CrossAttention):
                encoder_weights += shape.encoder_weights(state)
                encoder_macs += shape.encoder_weights(state) * state.encoder_tokens
    if counted is None:
        logits = shape.logits_weights()
        weights_bytes = weight_format.bytes_for(token_macs + logits, field="weight_format")
    else:
        # The list has cross-attention's keys and values too, which pass encoder positions only.
        token_macs = max(0, counted.token_weights - encoder_weights)
        logits, weights_bytes = counted.logits_weights, counted.read_bytes
    return WorkPlan(
        groups=tuple(
            PairGroup(count=count, sight=sight, macs_per_pair=macs, row_bytes=row_bytes)
            for (sight, macs, row_bytes), count in counts.items()
        ),
        token_macs=token_macs,
        encoder_macs=encoder_macs,
        logits_macs=logits,
        weights_bytes=weights_bytes,
        encoder_weights_bytes=weight_format.bytes_for(encoder_weights, field="weight_format"),
        recurrent_bytes=recurrent_bytes,
        assumptions=_assumptions(model, shape),
        not_counted=(
            _not_counted(model, shape) if counted is None else _left_out_beside_matrices(model)
        ),
    )


def _attended(
    layers: list[Layer], formats: list[KvFormat], index: int
) -> list[tuple[AttentionState, KvFormat, bool]]:
    """Return the states that layer `index` attends over, their format, and whether it owns them.

    A shared state is followed to the layer that keeps the rows; they are read there, in its format.
    """
    found: list[tuple[AttentionState, KvFormat, bool]] = []
    for state in layers[index].states:
        if isinstance(state, Shared):
            owner = _owner(layers, state.with_layer, ("layers", index, "with_layer"))
            found += [
                (kept, formats[owner], False)
                for kept in layers[owner].states
                if not isinstance(kept, Recurrent | Shared)
            ]
        elif not isinstance(state, Recurrent):
            found.append((state, formats[index], True))
    return found


def _owner(layers: list[Layer], index: int, field: FieldPath) -> int:
    """Return the layer at the end of a chain of shared layers."""
    seen: set[int] = set()
    while index not in seen:
        seen.add(index)
        links = [s.with_layer for s in layers[index].states if isinstance(s, Shared)]
        if not links:
            return index
        index = links[0]
    raise Conflict("{field}: layers share in a circle", field=field)


def _sight(state: AttentionState) -> Sight:
    """Return which rows a query reads, its own included."""
    match state:
        case SlidingWindow():
            return Growing(limit=state.window)
        case ChunkedAttention():
            return Chunked(chunk=state.chunk)
        case CrossAttention():
            return Constant(count=state.encoder_tokens)
        case LatentAttention():
            return Growing(group=state.tokens_per_entry, limit=state.window)
    return Growing()


def _pair_macs(state: AttentionState, heads: int) -> int:
    """Return the products of one query position with one row: all heads, keys then values.

    A latent row serves as key (with its rope part) and as value of every head, once the per-head
    expansions are folded into the query and the output.
    """
    if isinstance(state, LatentAttention):
        return heads * (2 * state.latent_dim + state.rope_dim)
    return heads * (state.k_dim + state.v_dim)


def _assumptions(model: ModelState, shape: ProjectionShape) -> tuple[Note, ...]:
    """Return what was taken for granted about this model."""
    notes = [
        Note("rows_read_once", "A pass reads every weight and every visible row once."),
        Note("last_logits_only", "Each pass computes the logits of its last position only."),
    ]
    latent = [s for run in model.runs for s in run.layer.states if isinstance(s, LatentAttention)]
    if shape.query_heads is None and not latent:
        notes.append(
            Note("no_grouping", "Query heads are taken to be as many as KV heads: no grouping.")
        )
    if latent:
        notes.append(
            Note(
                "latent_absorbed",
                "Latent rows are read as they are kept: expansions are folded into the queries.",
            )
        )
    if any(s.index_dim for s in latent) or _has_index(model):
        notes.append(
            Note(
                "sparse_read_whole",
                "Sparse layers are counted as if every visible row were read, not a selection.",
            )
        )
    if "cross_attention" in model.kinds:
        notes.append(
            Note("encoder_as_wide", "The encoder's output is taken to be as wide as the decoder.")
        )
    if shape.experts != 0:
        notes.append(
            Note(
                "one_tokens_experts",
                "Of the experts only those of one token are read; a batch reads more of them.",
            )
        )
    return tuple(notes)


def _has_index(model: ModelState) -> bool:
    return any(
        isinstance(state, FullAttention) and state.index_dim
        for run in model.runs
        for state in run.layer.states
    )


_ALWAYS_LEFT_OUT = (
    Note(
        "elementwise",
        "Softmax, norms, rotary positions, activations and biases are not counted.",
    ),
    Note("embedding", "Looking up the embedding of a token is not counted."),
    Note("writes", "Bytes written, and activations read back, are not counted."),
)


def _left_out_beside_matrices(model: ModelState) -> tuple[Note, ...]:
    """Return what the counts leave out where every matrix of the model is counted."""
    notes = [*_ALWAYS_LEFT_OUT]
    if "recurrent" in model.kinds:
        notes.append(
            Note("recurrent_updates", "Updates of recurrent states are not counted, only reads.")
        )
    if "cross_attention" in model.kinds:
        notes.append(Note("encoder", "The encoder itself is not counted."))
    return tuple(notes)


def _not_counted(model: ModelState, shape: ProjectionShape) -> tuple[Note, ...]:
    """Return what the counts leave out for this model and shape."""
    notes = [*_ALWAYS_LEFT_OUT]
    if shape.hidden_size is None:
        notes.append(
            Note(
                "projections",
                "Projections, MLP and logits are not counted: no hidden size is given.",
            )
        )
        return tuple(notes)
    if shape.intermediate_size is None:
        notes.append(Note("mlp", "The MLP is not counted: its shape is not given."))
    if shape.vocab_size is None:
        notes.append(Note("logits", "The logits are not counted: no vocabulary size is given."))
    if "latent_attention" in model.kinds and shape.latent is None:
        notes.append(
            Note(
                "latent_projections",
                "Projections of latent layers are not counted: no widths given.",
            )
        )
    if "recurrent" in model.kinds:
        notes.append(
            Note("recurrent", "Work of recurrent layers is not counted, only reading their state.")
        )
    if "cross_attention" in model.kinds:
        notes.append(Note("encoder", "The encoder itself is not counted."))
    return tuple(notes)
