"""One line of a model's weights, and the block of lines that layers share.

A line is one kind of tensor of one layer (or of `copies` equal ones: a layer's experts). Lines of
layers that are alike are kept once, with the layers' indices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from app.domain.errors import Conflict
from app.domain.weight_formats import Plain, StoredTensor, WeightFormat

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
