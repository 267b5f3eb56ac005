"""What a model's weights are, line by line: parameters and bytes, and who may hold which part.

A line is one kind of tensor of one layer (or of `copies` equal ones: a layer's experts). Lines of
layers that are alike are kept once, with the layers' indices. All else is a sum over lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from app.domain.checks import checked_int
from app.domain.errors import Conflict
from app.domain.notes import Note
from app.domain.weight_formats import Plain, StoredTensor, WeightFormat

MAX_RANKS = 65_536
BF16 = Plain()
# vLLM 0.33.0, layers/vocab_parallel_embedding.py: DEFAULT_VOCAB_PADDING_SIZE.
VOCABULARY_PADDING = 64


class Component(StrEnum):
    """What a line is for."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    MLP = "mlp"
    EXPERTS = "experts"
    SHARED_EXPERTS = "shared_experts"
    ROUTER = "router"
    NORM = "norm"
    OUTPUT = "output"
    OTHER = "other"


class Part(StrEnum):
    """Which part of a composite model a block belongs to."""

    TEXT = "text"
    ENCODER = "encoder"
    VISION = "vision"
    AUDIO = "audio"
    PROJECTOR = "projector"
    MULTI_TOKEN = "multi_token"  # noqa: S105  # tokens of text


class Place(StrEnum):
    """Where pipeline stages put a block: with the input, with its layers, or with the output."""

    FIRST = "first"
    LAYERS = "layers"
    LAST = "last"


class Kind(StrEnum):
    """How a tensor is used, which decides whether a quantiser touches it.

    A gate is a matrix that loaders leave as it is: a router, an indexer's head weights, what joins
    a draft layer to the model.
    """

    MATRIX = "matrix"
    GATE = "gate"
    TABLE = "table"
    CONVOLUTION = "convolution"
    VECTOR = "vector"


class Cut(StrEnum):
    """What tensor-parallel ranks do with a line.

    WHOLE: every rank holds all of it. EVEN: `units` (heads, columns, groups) are dealt out evenly.
    COPIED: the same, but with more ranks than units each unit is copied (KV heads). VOCABULARY:
    rows are padded to whole groups of 64 for each rank and dealt out.
    """

    WHOLE = "whole"
    EVEN = "even"
    COPIED = "copied"
    VOCABULARY = "vocabulary"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLine:
    """`copies` equal tensors of one shape.

    `name` is the module's path inside its layer as checkpoints spell it, with `*` for an expert's
    number; `axis` is the dimension that tensor ranks cut into `units`. `active` of the copies are
    used for one token. A buffer is stored with the weights but is no parameter of the class.
    """

    name: str
    component: Component
    shape: tuple[int, ...]
    kind: Kind = Kind.MATRIX
    copies: int = 1
    active: int = 1
    cut: Cut = Cut.WHOLE
    units: int = 1
    axis: int = 0
    by_expert: bool = False
    is_buffer: bool = False
    format: WeightFormat = BF16

    @property
    def elements(self) -> int:
        """Return the number of elements of all copies."""
        return self.copies * math.prod(self.shape)

    @property
    def parameters(self) -> int:
        """Return the elements that count as parameters."""
        return 0 if self.is_buffer else self.elements

    @property
    def active_parameters(self) -> int:
        """Return the parameters that take part in computing one token."""
        return 0 if self.is_buffer else self.active * math.prod(self.shape)

    @property
    def stored(self) -> tuple[StoredTensor, ...]:
        """Return what is stored for the line, scales and zero points included."""
        return tuple(tensor.times(self.copies) for tensor in self.format.stored(self.shape))

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the line."""
        return sum(tensor.size_bytes for tensor in self.stored)

    def on_rank(self, tensor_ranks: int, expert_ranks: int = 1) -> WeightLine:
        """Return what one rank holds of the line (the fullest rank, where they differ).

        With expert ranks the experts are dealt out whole and tensor ranks do not cut them.
        8 KV heads of 128 rows over 4 ranks are 256 rows each; over 16 ranks 128 rows, twice over.

        Raises:
            Conflict: when the units cannot be dealt out evenly.

        """
        if self.by_expert and expert_ranks > 1:
            return replace(self, copies=-(-self.copies // expert_ranks), active=self.active)
        if self.cut is Cut.WHOLE or tensor_ranks == 1:
            return self
        rows = self.shape[self.axis]
        if self.cut is Cut.VOCABULARY:
            padded = -(-rows // VOCABULARY_PADDING) * VOCABULARY_PADDING
            held = -(-padded // tensor_ranks)
        elif self.units % tensor_ranks == 0:
            held = rows // tensor_ranks
        elif self.cut is Cut.COPIED and tensor_ranks % self.units == 0:
            held = rows // self.units
        else:
            raise Conflict(
                "{field} {ranks} does not divide the {units} units of {line}",
                field="tensor_parallel",
                ranks=tensor_ranks,
                units=self.units,
                line=self.name,
            )
        shape = (*self.shape[: self.axis], held, *self.shape[self.axis + 1 :])
        return replace(self, shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBlock:
    """Lines that stand together: outside the layers, or in each of `layers`.

    `prefix` is what checkpoints put before a line's name, with `{layer}` for the index.
    """

    part: Part
    place: Place
    lines: tuple[WeightLine, ...]
    layers: tuple[int, ...] = ()
    prefix: str = ""

    @property
    def repeats(self) -> int:
        """Return how often the lines occur."""
        return len(self.layers) if self.place is Place.LAYERS else 1

    @property
    def parameters(self) -> int:
        """Return the parameters of all occurrences."""
        return self.repeats * sum(line.parameters for line in self.lines)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all occurrences."""
        return self.repeats * sum(line.size_bytes for line in self.lines)


# Parts whose linear layers quantisers take by default; towers and projectors stay as they are.
_QUANTISED_PARTS = frozenset({Part.TEXT, Part.ENCODER, Part.MULTI_TOKEN})
_NOT_QUANTISED = frozenset({Component.EMBEDDING, Component.OUTPUT})


def is_usually_quantised(block: WeightBlock, line: WeightLine) -> bool:
    """Return whether quantisers take a line by default.

    They take linear layers of the decoder; embeddings, the output projection, routers, norms and
    convolutions stay in the model's own dtype.
    """
    return (
        line.kind is Kind.MATRIX
        and block.part in _QUANTISED_PARTS
        and line.component not in _NOT_QUANTISED
    )


# Which format a line of a block gets; `layer` is None outside the layers.
FormatChooser = Callable[[WeightBlock, int | None, WeightLine], WeightFormat]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeights:
    """The weights of a model; `basis` says where they come from.

    `tied`: the output projection is the embedding table, which is counted once. Multi-token
    prediction layers are a part of their own and in no total unless asked for.
    """

    blocks: tuple[WeightBlock, ...]
    num_layers: int
    basis: str
    family: str = ""
    tied: bool = False
    notes: tuple[Note, ...] = ()

    def chosen(self, parts: Iterable[Part] | None = None) -> tuple[WeightBlock, ...]:
        """Return the blocks of these parts; all but the multi-token ones when None."""
        wanted = set(parts) if parts is not None else set(Part) - {Part.MULTI_TOKEN}
        return tuple(block for block in self.blocks if block.part in wanted)

    def parameters(self, parts: Iterable[Part] | None = None) -> int:
        """Return the number of parameters of these parts."""
        return sum(block.parameters for block in self.chosen(parts))

    def active_parameters(self, parts: Iterable[Part] | None = None) -> int:
        """Return the parameters used for one token: all but the experts not chosen for it."""
        return sum(
            block.repeats * line.active_parameters
            for block in self.chosen(parts)
            for line in block.lines
        )

    def size_bytes(self, parts: Iterable[Part] | None = None) -> int:
        """Return the bytes of these parts as their lines are stored."""
        return sum(block.size_bytes for block in self.chosen(parts))

    def stored(self, parts: Iterable[Part] | None = None) -> tuple[StoredTensor, ...]:
        """Return what is stored by dtype, as a checkpoint's header would add it up."""
        sums: dict[str, StoredTensor] = {}
        for block in self.chosen(parts):
            for line in block.lines:
                for tensor in line.stored:
                    whole = tensor.times(block.repeats)
                    before = sums.get(whole.dtype)
                    sums[whole.dtype] = whole if before is None else before.plus(whole)
        return tuple(sums.values())

    def with_formats(self, choose: FormatChooser) -> ModelWeights:
        """Return the same weights with each line in the format that `choose` gives it.

        Layers that were alike and are now stored differently come apart into blocks of their own.
        """
        blocks = (piece for block in self.blocks for piece in _formatted(block, choose))
        return replace(self, blocks=tuple(blocks))

    def quantised(self, chosen: WeightFormat, rest: Plain = BF16) -> ModelWeights:
        """Return the same weights as a quantiser would store them by default.

        What it leaves alone is stored as `rest`; FP32 buffers stay FP32.
        """

        def choose(block: WeightBlock, _layer: int | None, line: WeightLine) -> WeightFormat:
            if is_usually_quantised(block, line):
                return chosen
            return line.format if line.is_buffer else rest

        return self.with_formats(choose)

    def rank_bytes(
        self,
        *,
        first_layer: int = 0,
        last_layer: int | None = None,
        tensor_ranks: int = 1,
        expert_ranks: int = 1,
        parts: Iterable[Part] | None = None,
    ) -> int:
        """Return the bytes that one rank of a pipeline stage holds.

        The stage holds layers `first_layer`..`last_layer`, both included; the first stage holds the
        embedding and what feeds it (vision, audio, encoder), the last one the final norm and the
        output. A tied table that is on neither the first nor the only stage is held once more by
        the last: Transformers and vLLM keep a copy there.

        Raises:
            OutOfRange: for layers or ranks outside the model.
            Conflict: when a line cannot be dealt out evenly.

        """
        end = self.num_layers - 1 if last_layer is None else last_layer
        checked_int(end, "last_layer", low=0, high=self.num_layers - 1)
        checked_int(first_layer, "first_layer", low=0, high=end)
        return self._rank_bytes(first_layer, end, self._sizes(tensor_ranks, expert_ranks), parts)

    def stages_bytes(
        self, stages: Iterable[int], *, tensor_ranks: int = 1, expert_ranks: int = 1
    ) -> tuple[int, ...]:
        """Return `rank_bytes` for stages of so many layers, each line cut once for all of them.

        Raises:
            OutOfRange: for layers or ranks outside the model.
            Conflict: when a line cannot be dealt out evenly.

        """
        sizes = self._sizes(tensor_ranks, expert_ranks)
        found, first = [], 0
        for count in stages:
            end = first + checked_int(count, "layers_per_stage", low=1, high=self.num_layers) - 1
            checked_int(end, "last_layer", low=0, high=self.num_layers - 1)
            found.append(self._rank_bytes(first, end, sizes, None))
            first = end + 1
        return tuple(found)

    @staticmethod
    def _sizes(tensor_ranks: int, expert_ranks: int) -> Callable[[WeightLine], int]:
        """Return what says how much of a line a rank holds, and remembers it."""
        checked_int(tensor_ranks, "tensor_parallel", low=1, high=MAX_RANKS)
        checked_int(expert_ranks, "expert_parallel", low=1, high=MAX_RANKS)
        # By identity: hashing a line costs as much as cutting it.
        known: dict[int, int] = {}

        def size(line: WeightLine) -> int:
            held = known.get(id(line))
            if held is None:
                held = known[id(line)] = line.on_rank(tensor_ranks, expert_ranks).size_bytes
            return held

        return size

    def _rank_bytes(
        self,
        first: int,
        end: int,
        size: Callable[[WeightLine], int],
        parts: Iterable[Part] | None,
    ) -> int:
        is_first, is_last = first == 0, end == self.num_layers - 1
        total = 0
        for block in self.chosen(parts):
            repeats = _occurrences(block, first, end, is_first=is_first, is_last=is_last)
            for line in block.lines:
                held = repeats
                if self.tied and is_last and not is_first and _is_token_table(block, line):
                    held += 1
                if held:
                    total += held * size(line)
        return total


def _is_token_table(block: WeightBlock, line: WeightLine) -> bool:
    return (
        block.part is Part.TEXT
        and block.place is Place.FIRST
        and line.cut is Cut.VOCABULARY
        and line.component is Component.EMBEDDING
    )


def _occurrences(
    block: WeightBlock, first: int, last: int, *, is_first: bool, is_last: bool
) -> int:
    """Return how often a stage of layers first..last holds the block's lines."""
    if block.place is Place.FIRST:
        return int(is_first)
    if block.place is Place.LAST:
        return int(is_last)
    if block.part is Part.TEXT:
        return sum(first <= layer <= last for layer in block.layers)
    # A tower's own layers stand before the text; multi-token layers behind it.
    stands_here = is_last if block.part is Part.MULTI_TOKEN else is_first
    return block.repeats if stands_here else 0


def _formatted(block: WeightBlock, choose: FormatChooser) -> Iterable[WeightBlock]:
    indices: tuple[int | None, ...] = block.layers if block.place is Place.LAYERS else (None,)
    groups: dict[tuple[WeightFormat, ...], list[int | None]] = {}
    for index in indices:
        formats = tuple(choose(block, index, line) for line in block.lines)
        groups.setdefault(formats, []).append(index)
    for formats, members in groups.items():
        lines = tuple(
            replace(line, format=chosen) for line, chosen in zip(block.lines, formats, strict=True)
        )
        layers = tuple(index for index in members if index is not None)
        yield replace(block, lines=lines, layers=layers)
