"""From headers to weights by layer."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save

from app.domain.ggml_types import GGML_TYPES
from app.readers.gguf import GgufHeader, GgufTensor
from app.readers.header_weights import gguf_weights, safetensors_weights
from app.readers.safetensors import read_safetensors


def gguf(*rows: tuple[str, int]) -> GgufHeader:
    """Return a header of F32 vectors."""
    tensors = tuple(
        GgufTensor(name=name, shape=(size,), type=GGML_TYPES[0], offset_bytes=0,
                   size_bytes=4 * size)
        for name, size in rows
    )  # fmt: skip
    return GgufHeader(version=3, byte_order="little", alignment_bytes=32, metadata={}, omitted={},
                      tensors=tensors, header_bytes=0, split=None)  # fmt: skip


def test_a_gguf_by_layer() -> None:
    """Blocks are layers, experts are told, `output` and its norm stand behind the layers."""
    weights = gguf_weights(
        gguf(
            ("token_embd.weight", 5),
            ("blk.0.attn_q.weight", 3),
            ("blk.11.ffn_up_exps.weight", 7),
            ("blk.11.ffn_up_shexp.weight", 1),
            ("output_norm.weight", 2),
            ("output.weight", 5),
            ("rope_freqs.weight", 1),
        )
    )
    assert weights.num_layers == 12
    assert sum(group.size_bytes for group in weights.groups if group.is_expert) == 28
    assert sum(group.size_bytes for group in weights.groups if group.layer == 11) == 32
    assert weights.stage_bytes(11, 11) == 32 + 4 * 7
    assert weights.stage_bytes(0, 10) == 4 * (5 + 3 + 1)
    assert weights.basis == "gguf header"


@pytest.mark.parametrize(
    ("name", "layer", "is_last", "is_expert"),
    [
        ("model.embed_tokens.weight", None, False, False),
        ("model.layers.7.mlp.experts.3.up_proj.weight", 7, False, True),
        ("model.language_model.layers.7.mlp.gate.weight", 7, False, False),
        ("transformer.h.3.attn.c_attn.weight", 3, False, False),
        ("model.norm.weight", None, True, False),
        ("lm_head.weight", None, True, False),
        ("transformer.ln_f.bias", None, True, False),
        ("head.weight", None, True, False),
        ("model.visual.blocks.5.norm1.weight", None, False, False),
        ("model.encoder.layers.5.fc1.weight", None, False, False),
        ("model.layers.5.norm.weight", 5, False, False),
    ],
)
def test_a_checkpoint_s_names(
    name: str,
    layer: int | None,
    is_last: bool,  # noqa: FBT001
    is_expert: bool,  # noqa: FBT001
) -> None:
    """A tensor's layer is the decoder's; towers and encoders stand before the text."""
    header = read_safetensors(save({name: np.zeros((2, 3), dtype=np.float16)}))
    (group,) = safetensors_weights(header).groups
    assert (group.layer, group.is_last, group.is_expert) == (layer, is_last, is_expert)
    assert (group.dtype, group.elements, group.size_bytes) == ("F16", 6, 12)
