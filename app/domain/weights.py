"""What a model's weights are: sums over their lines, and what each rank and stage holds of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from app.domain.checks import checked_int
from app.domain.notes import Note
from app.domain.weight_formats import Plain, StoredTensor, WeightFormat
from app.domain.weight_lines import (
    BF16,
    Component,
    Cut,
    Part,
    Place,
    WeightBlock,
    WeightLine,
    is_usually_quantised,
)

MAX_RANKS = 65_536

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
