"""A decoder as a family row: what stands before the layers, in each layer, and behind them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from app.domain.weight_lines import Component, Cut, Part, Place, WeightBlock
from app.readers.weights import parts as layer_parts
from app.readers.weights.experts import num_layers
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, linear, norm, table
from app.readers.weights.parts import Option, chosen, hidden

Extra = Callable[[Fields], Lines]
LayerCount = Callable[[Fields], int]


def no_lines(_fields: Fields) -> Lines:
    """Return nothing."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A family's decoder; `parts` make up each layer, `first` and `last` stand outside them.

    `count` gives the number of layers; `width` the embedding's columns where they are not the
    model's width.
    """

    parts: tuple[layer_parts.Part, ...]
    prefix: str = "model.layers.{layer}"
    embedding: str = "model.embed_tokens.weight"
    final_norm: str = "model.norm"
    final_norm_bias: Option = False
    final_norm_if: Callable[[Fields], bool] | None = None
    head: str = "lm_head"
    head_bias: Option = False
    first: Extra = no_lines
    last: Extra = no_lines
    count: LayerCount = num_layers
    width: LayerCount = hidden
    vocabulary: LayerCount = lambda fields: fields.size("vocab_size")
    extra_rows: int = 0

    def blocks(self, fields: Fields, *, tied: bool, part: Part = Part.TEXT) -> list[WeightBlock]:
        """Return the decoder's blocks; a tied head has no line of its own, save its bias."""
        return [
            self.first_block(fields, part),
            *self.layer_blocks(fields, part),
            self.last_block(fields, tied=tied, part=part),
        ]

    def first_block(self, fields: Fields, part: Part = Part.TEXT) -> WeightBlock:
        """Return the embedding and what else feeds the first layer."""
        rows = self.vocabulary(fields) + self.extra_rows
        lines = (
            *table(self.embedding, rows, self.width(fields), cut=Cut.VOCABULARY),
            *self.first(fields),
        )
        return WeightBlock(part=part, place=Place.FIRST, lines=lines)

    def layer_blocks(self, fields: Fields, part: Part = Part.TEXT) -> list[WeightBlock]:
        """Return one block for each distinct kind of layer, in order of first appearance."""
        return stacked(self.parts, fields, self.count(fields), part, self.prefix)

    def last_block(self, fields: Fields, *, tied: bool, part: Part = Part.TEXT) -> WeightBlock:
        """Return the final norm and the output projection."""
        lines: Lines = ()
        if self.final_norm and (self.final_norm_if is None or self.final_norm_if(fields)):
            bias = chosen(fields, self.final_norm_bias)
            lines += norm(self.final_norm, hidden(fields), bias=bias)
        lines += self.last(fields)
        head = linear(self.head, Component.OUTPUT, self.vocabulary(fields), self.width(fields),
                      bias=chosen(fields, self.head_bias), cut=Cut.VOCABULARY)  # fmt: skip
        lines += head[1:] if tied else head
        return WeightBlock(part=part, place=Place.LAST, lines=lines)


def stacked(
    parts: tuple[layer_parts.Part, ...],
    fields: Fields,
    count: int,
    part: Part,
    prefix: str,
) -> list[WeightBlock]:
    """Return the layers' blocks: layers whose parts do not vary are built once."""
    kinds: dict[Hashable, list[int]] = {}
    for layer in range(count):
        kind = tuple(item.variant(fields, layer) for item in parts)
        kinds.setdefault(kind, []).append(layer)
    return [
        WeightBlock(
            part=part,
            place=Place.LAYERS,
            lines=tuple(line for item in parts for line in item.lines(fields, layers[0])),
            layers=tuple(layers),
            prefix=prefix,
        )
        for layers in kinds.values()
    ]
