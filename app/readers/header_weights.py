"""From a GGUF or safetensors header to weights by layer."""

from __future__ import annotations

import re

from app.domain.stored_weights import StoredGroup, StoredWeights, merged
from app.readers.gguf import GgufHeader
from app.readers.safetensors import SafetensorsHeader

# Decoder layers as checkpoints number them; an encoder's or a tower's layers stand before the text.
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|blk)\.(\d{1,5})\.")
_BEFORE = re.compile(r"vision|visual|audio|encoder\.|^v\.|^mm\.|^a\.")
_LAST = re.compile(
    r"^(?:output|output_norm)\.|lm_head|embed_out|(?:^|\.)(?:norm|norm_f|ln_f|final_layernorm"
    r"|final_layer_norm|head)\.(?:weight|bias)$"
)
_EXPERT = re.compile(r"_exps\.|\.experts[._]")


def _group(name: str, dtype: str, elements: int, size_bytes: int) -> StoredGroup:
    before = _BEFORE.search(name) is not None
    layer = None if before else _LAYER.search(name)
    return StoredGroup(
        layer=int(layer[1]) if layer else None,
        is_last=not before and layer is None and _LAST.search(name) is not None,
        is_expert=_EXPERT.search(name) is not None,
        dtype=dtype,
        tensors=1,
        elements=elements,
        size_bytes=size_bytes,
    )


def gguf_weights(header: GgufHeader) -> StoredWeights:
    """Return a GGUF's weights; tensor names are llama.cpp's (`blk.0.attn_q.weight`)."""
    groups = (
        _group(tensor.name, tensor.type.name, tensor.parameters, tensor.size_bytes)
        for tensor in header.tensors
    )
    return StoredWeights(groups=merged(groups), basis="gguf header")


def safetensors_weights(header: SafetensorsHeader) -> StoredWeights:
    """Return a safetensors file's weights; tensor names are those of its checkpoint."""
    groups = (
        _group(tensor.name, tensor.dtype, tensor.elements, tensor.size_bytes)
        for tensor in header.tensors
    )
    return StoredWeights(groups=merged(groups), basis="safetensors header")
