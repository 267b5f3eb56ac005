"""Decoders that also attend to an encoder or to images: what their cross-attention caches."""

from __future__ import annotations

from app.domain.errors import Unsupported
from app.domain.state import MAX_DIM, MAX_HEADS, MAX_LAYERS
from app.engines.transformers.cache import CacheLayer, EncoderKeyValue, KeyValue, Part
from app.engines.transformers.decoder import decoder
from app.engines.transformers.model import Model, fields_of
from app.readers.hf_config.fields import Fields, is_mapping


def _rows(layer: CacheLayer) -> KeyValue:
    """Return the keys and values of a plain attention layer.

    Raises:
        Unsupported: for a decoder of another kind, which no class gives an encoder.

    """
    own = layer.parts[0] if len(layer.parts) == 1 else None
    if not isinstance(own, KeyValue):
        raise Unsupported(
            "{field}: a {kind} layer with cross-attention is not modelled",
            field="model_type",
            kind=layer.kind,
        )
    return own


def _cross(layers: list[CacheLayer]) -> list[CacheLayer]:
    """Return the cross-attention list beside a decoder's own: the same heads and widths."""
    made: dict[int, tuple[Part, ...]] = {}
    for layer in layers:
        if id(layer.parts) not in made:
            own = _rows(layer)
            made[id(layer.parts)] = (
                EncoderKeyValue(
                    kv_heads=own.kv_heads, k_dim=own.k_dim, v_dim=own.v_dim, window=own.window
                ),
            )
    return [
        CacheLayer(index=layer.index, kind="cross_attention", parts=made[id(layer.parts)])
        for layer in layers
    ]


def with_cross(model: Model) -> list[CacheLayer]:
    """Return a decoder's layers and its cross-attention's, of the decoder part's own kind."""
    layers = decoder(model.text)
    return layers + _cross(layers)


def _plain_layers(layers: int, heads: int, width: int) -> list[CacheLayer]:
    parts = (KeyValue(kv_heads=heads, k_dim=width, v_dim=width),)
    return [CacheLayer(index=index, kind="full_attention", parts=parts) for index in range(layers)]


def bart(model: Model) -> list[CacheLayer]:
    """BART and its kin: `decoder_layers` layers of all `decoder_attention_heads`."""
    fields = model.text
    heads = fields.heads("decoder_attention_heads")
    width = fields.dim("d_model", "hidden_size") // heads
    layers = _plain_layers(fields.layers("decoder_layers"), heads, width)
    return layers + _cross(layers)


def t5(model: Model) -> list[CacheLayer]:
    """T5 and its kin: heads of `d_kv`, as many decoder layers as encoder layers unless told."""
    fields = model.text
    count = fields.integer_or_none("num_decoder_layers", high=MAX_LAYERS)
    layers = _plain_layers(
        count or fields.layers("num_layers"), fields.heads("num_heads"), fields.dim("d_kv")
    )
    return layers + _cross(layers)


def prophetnet(model: Model) -> list[CacheLayer]:
    """Return ProphetNet's decoder and cross-attention."""
    fields = model.text
    heads = fields.heads("num_decoder_attention_heads")
    width = fields.dim("hidden_size") // heads
    layers = _plain_layers(fields.layers("num_decoder_layers"), heads, width)
    return layers + _cross(layers)


def moonshine(model: Model) -> list[CacheLayer]:
    """Return Moonshine's decoder and cross-attention, which may share heads (GQA)."""
    fields = model.text
    heads = fields.heads("decoder_num_attention_heads", "num_attention_heads")
    kv_heads = fields.integer_or_none(
        "decoder_num_key_value_heads", "num_key_value_heads", high=MAX_HEADS
    )
    width = fields.integer_or_none("head_dim", high=MAX_DIM) or fields.dim("hidden_size") // heads
    layers = _plain_layers(
        fields.layers("decoder_num_hidden_layers", "num_hidden_layers"), kv_heads or heads, width
    )
    return layers + _cross(layers)


def dia(model: Model) -> list[CacheLayer]:
    """Return Dia's decoder; its cross-attention has heads and a width of its own."""
    fields = model.text
    heads = fields.heads("cross_num_key_value_heads")
    width = fields.dim("cross_head_dim")
    parts = (EncoderKeyValue(kv_heads=heads, k_dim=width, v_dim=width),)
    layers = decoder(fields)
    return layers + [
        CacheLayer(index=layer.index, kind="cross_attention", parts=parts) for layer in layers
    ]


def mllama(model: Model) -> list[CacheLayer]:
    """Cross-attention layers stand in the decoder's own list, and keep the image's positions."""
    fields = model.text
    crossing = set(
        fields.integers("cross_attention_layers", high=MAX_LAYERS) or _mllama_default(fields)
    )
    found = []
    for layer in decoder(fields):
        own = _rows(layer)
        if layer.index not in crossing:
            found.append(layer)
            continue
        part = EncoderKeyValue(kv_heads=own.kv_heads, k_dim=own.k_dim, v_dim=own.v_dim,
                               key_role="key", value_role="value")  # fmt: skip
        found.append(CacheLayer(index=layer.index, kind=layer.kind, parts=(part,)))
    return found


def _mllama_default(fields: Fields) -> list[int]:
    layers = [3, 8, 13, 18, 23, 28, 33, 38]
    if not fields.has("cross_attention_layers"):
        fields.assume_default("cross_attention_layers", layers)
    return layers


def blt(model: Model) -> list[CacheLayer]:
    """Two lists: the local encoder's layers, and the local decoder's in place of a cross cache.

    The global transformer is run over all patches anew, without a cache.
    """
    outer = model.outer
    found = []
    for name, kind, part_type in (
        ("encoder_config", "full_attention", "blt_local_encoder"),
        ("decoder_config", "cross_attention", "blt_local_decoder"),
    ):
        raw = outer.value(name)
        part = fields_of(raw if is_mapping(raw) else {}, part_type, of=outer, at=name)
        roles = ("key", "value") if kind == "full_attention" else ("cross_key", "cross_value")
        for layer in decoder(part):
            own = _rows(layer)
            rows = KeyValue(kv_heads=own.kv_heads, k_dim=own.k_dim, v_dim=own.v_dim,
                            key_role=roles[0], value_role=roles[1])  # fmt: skip
            found.append(CacheLayer(index=layer.index, kind=kind, parts=(rows,)))
    return found


def empty_cross(model: Model) -> list[CacheLayer]:
    """Return a decoder whose class makes a cross-attention list even where nothing fills it."""
    layers = decoder(model.text)
    return layers + [CacheLayer(index=layer.index, kind="cross_attention") for layer in layers]
