"""Recurrent and convolution states as Transformers' cache layers hold them.

A convolution keeps all of its kernel's columns, one more than the next output needs; the running
state of most families stays in float32 whatever the model's dtype. Shapes come from the reader,
which says what the model needs; measured: tests/data/transformers_caches.json.gz.
"""

from __future__ import annotations

from app.engines.transformers.cache import StateRow, States
from app.engines.transformers.kinds import LayerKind
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.recurrent_parts import RecurrentShape, kernel
from app.readers.hf_config.recurrent_shapes import inkling, ngram_shape, shape_of

# Classes that store no more columns than they need.
_NEEDED_COLUMNS = frozenset({"recurrent_gemma", "zaya"})
_INKLING = frozenset({"inkling2_loop_text", "inkling2_text", "inkling_text"})


def states_of(fields: Fields, kind: LayerKind) -> States:
    """Return the constant-size tensors of one layer."""
    if fields.model_type in _INKLING:
        shape = inkling(fields, sliding=kind.window is not None)
    else:
        shape = shape_of(fields)
    rows = _convolutions(fields, shape)
    if kind.ngrams:
        rows += _ngram_states(fields)
    return States(rows=(*rows, *_accumulators(shape)))


def _convolutions(fields: Fields, shape: RecurrentShape) -> list[StateRow]:
    rows = []
    for position, conv in enumerate(shape.convolutions):
        columns = conv.columns if fields.model_type in _NEEDED_COLUMNS else conv.kernel
        rows.append(
            StateRow(
                name=f"conv_states[{position}]",
                role="conv_state",
                shape=(conv.channels, columns),
                dtype="float32" if conv.fp32 else None,
            )
        )
    return rows


def _accumulators(shape: RecurrentShape) -> list[StateRow]:
    return [
        StateRow(
            name=f"recurrent_states[{position}]",
            role="recurrent_state",
            shape=state.shape,
            dtype="float32" if state.fp32 else None,
        )
        for position, state in enumerate(shape.accumulators)
    ]


def _ngram_states(fields: Fields) -> list[StateRow]:
    """Return what a layer with n-gram embeddings keeps beside: columns, and tokens' numbers."""
    conv = ngram_shape(fields).convolutions[0]
    tokens = kernel(fields, "ngram_size") - 1
    return [
        StateRow(name="conv_states[1]", role="conv_state", shape=(conv.channels, conv.columns)),
        StateRow(name="conv_states[2]", role="conv_state", shape=(tokens,), dtype="int64"),
    ]


def module_states(fields: Fields) -> States:
    """Return RecurrentGemma's states, which live on its modules and not in the cache.

    The convolution's three columns are a view of four from the first decode step on.
    """
    shape = shape_of(fields)
    conv, state = shape.convolutions[0], shape.accumulators[0]
    return States(
        rows=(
            StateRow(
                name="conv1d_state",
                role="conv_state",
                shape=(conv.channels, conv.columns),
                stored_shape=(conv.channels, conv.kernel),
            ),
            StateRow(
                name="recurrent_states",
                role="recurrent_state",
                shape=state.shape,
                dtype="float32",
            ),
        )
    )
