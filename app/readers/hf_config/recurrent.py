"""Models whose every layer keeps a state of constant size: Mamba, RWKV, xLSTM."""

from __future__ import annotations

from app.domain.dtypes import DTYPES
from app.domain.state import Layer, Recurrent, StateTensor
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.recurrent_parts import RecurrentShape
from app.readers.hf_config.recurrent_shapes import shape_of


def recurrent_state(fields: Fields, shape: RecurrentShape) -> Recurrent | None:
    """Return the state that a layer of that shape needs, or None when it needs none.

    A convolution needs kernel − 1 earlier columns, in the model's dtype unless it is kept in fp32.
    """
    tensors = []
    for index, conv in enumerate(shape.convolutions):
        if conv.columns:
            tensors.append(
                StateTensor(
                    name=_numbered("conv", index, len(shape.convolutions)),
                    shape=(conv.channels, conv.columns),
                    dtype=DTYPES["fp32"] if conv.fp32 else fields.model_dtype(),
                    split_axis=0,
                )
            )
    for index, state in enumerate(shape.accumulators):
        tensors.append(
            StateTensor(
                name=_numbered("state", index, len(shape.accumulators)),
                shape=state.shape,
                dtype=DTYPES["fp32"] if state.fp32 else fields.model_dtype(),
                split_axis=state.split_axis,
            )
        )
    return Recurrent(tensors=tuple(tensors)) if tensors else None


def _numbered(name: str, index: int, count: int) -> str:
    return name if count == 1 else f"{name}_{index}"


def recurrent_layer(fields: Fields) -> Layer:
    """Return a layer that keeps only its type's recurrent state."""
    state = recurrent_state(fields, shape_of(fields))
    return Layer(states=() if state is None else (state,))


def all_recurrent(fields: Fields) -> list[Layer]:
    """Return layers that all keep the same recurrent state."""
    return [recurrent_layer(fields)] * fields.layers()


def _xlstm_layers(fields: Fields) -> list[Layer]:
    """Return xLSTM's layers; older files count `num_blocks`."""
    count = fields.layers("num_hidden_layers", "num_blocks")
    return [recurrent_layer(fields)] * count


_MAMBA_READS = frozenset(
    {
        "time_step_rank",
        "use_conv_bias",
        "conv_bias",
        "layer_types",
        "d_inner",
        "use_mambapy",
        "use_falcon_mambapy",
    }
)

FAMILIES: tuple[Family, ...] = (
    Family(
        name="mamba",
        model_types=("mamba", "falcon_mamba"),
        layers=all_recurrent,
        reads=_MAMBA_READS,
        source="https://arxiv.org/abs/2312.00752, Transformers 5.24 models/mamba",
    ),
    Family(
        name="mamba2",
        model_types=("mamba2",),
        layers=all_recurrent,
        reads=_MAMBA_READS | {"expand"},
        source="https://arxiv.org/abs/2405.21060, Transformers 5.24 models/mamba2",
    ),
    Family(
        name="rwkv",
        model_types=("rwkv",),
        layers=all_recurrent,
        reads=frozenset({"attention_hidden_size"}),
        source="https://arxiv.org/abs/2305.13048, Transformers 5.24 models/rwkv",
    ),
    Family(
        name="xlstm",
        model_types=("xlstm",),
        layers=_xlstm_layers,
        reads=frozenset({"chunkwise_kernel", "max_inference_chunksize", "inference_state_dtype"}),
        source="https://arxiv.org/abs/2405.04517, Transformers 5.24 models/xlstm",
    ),
)
