"""Statements that exercises offer to tick: what a figure leaves out, and when state is reusable.

Half of them hold and half do not; a wrong one is a belief that people really have.
"""

from __future__ import annotations

from app.domain.notes import Note
from app.domain.practice import Choice, Draws

_CAPACITY_LEFT_OUT = (
    Note("weights", "the model's weights"),
    Note("activations", "activations of the tokens being computed"),
    Note("workspace", "workspace of the attention kernels"),
    Note("communication", "communication buffers between devices"),
    Note("graphs", "captured CUDA graphs"),
    Note("block_tables", "block tables and the scheduler's own records"),
)
_CAPACITY_COUNTED = (
    Note("values", "the values: the formula has the keys alone"),
    Note("last_blocks", "the empty positions of each last block, in the paged figure"),
    Note("padding", "the empty positions after shorter requests, in the padded figure"),
    Note("prompt", "the positions of the prompt: only generated ones are kept"),
)
_ATTENTION_LEFT_OUT = (
    Note("other_heads", "the other heads of the layer"),
    Note("other_layers", "the other layers"),
    Note("positions", "the rotation of queries and keys by position"),
    Note("output_matrix", "the matrix that joins the heads into the output"),
)
_ATTENTION_COUNTED = (
    Note("history", "the cached positions: only the newest counts"),
    Note("own_value", "the new position's own value"),
    Note("future", "the positions that come later: they will change this output"),
)
_REUSABLE_IF = (
    Note("same_weights", "the same model with the same weights computed it"),
    Note("same_adapter", "the same adapter, or none, was active"),
    Note("same_tokens", "every token before it is the same, in the same order"),
    Note("same_positions", "positions are encoded in the same way"),
    Note("same_format", "it is kept in the same format and layout"),
    Note("same_inputs", "images and prompt embeddings behind the tokens are the same"),
    Note("same_salt", "both requests may share, which a salt can forbid"),
    Note("causal", "attention is causal, so that later tokens leave it as it is"),
)
_NOT_ENOUGH = (
    Note("same_meaning", "the two texts mean the same"),
    Note("same_block", "the tokens of the block itself are the same"),
    Note("same_length", "the two prompts are equally long"),
    Note("same_answer", "the earlier answer was good"),
    Note("same_words", "the words are the same, whatever template or tokenizer made the tokens"),
)


def capacity_omissions(draws: Draws) -> tuple[Choice, ...]:
    """Return what a capacity figure leaves out, among what it counts."""
    return _mixed(draws, _CAPACITY_LEFT_OUT, 4, _CAPACITY_COUNTED, 2)


def attention_omissions(draws: Draws) -> tuple[Choice, ...]:
    """Return what a step of one head by hand leaves out, among what is in it."""
    return _mixed(draws, _ATTENTION_LEFT_OUT, 3, _ATTENTION_COUNTED, 2)


def reuse_conditions(draws: Draws) -> tuple[Choice, ...]:
    """Return conditions that reuse needs, among some that do not suffice."""
    return _mixed(draws, _REUSABLE_IF, 4, _NOT_ENOUGH, 2)


def _mixed(
    draws: Draws, right: tuple[Note, ...], some: int, wrong: tuple[Note, ...], others: int
) -> tuple[Choice, ...]:
    choices = [
        Choice(code=label.code, label=label, is_right=is_right)
        for labels, size, is_right in ((right, some, True), (wrong, others, False))
        for label in draws.some(labels, size)
    ]
    return draws.some(choices, len(choices))
