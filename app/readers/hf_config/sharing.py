"""Decoders in which some layers read the keys and values of another layer."""

from __future__ import annotations

from app.domain.errors import Conflict, Unsupported
from app.domain.state import MAX_DIM, MAX_HEADS, MAX_LAYERS, Layer, Shared
from app.readers.hf_config.attention import HeadShape, grouped, per_layer
from app.readers.hf_config.draft import like_the_last
from app.readers.hf_config.family import Family, LayersOf
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import (
    FULL,
    Pattern,
    every,
    layer_kinds,
    state_of,
    window_halved_if,
)

GLOBAL_HEAD_DIM = 512


def _gemma3n_layers(fields: Fields) -> list[Layer]:
    """Return Gemma 3n's layers: every fifth is full, the last ones share."""
    count = fields.layers()
    window = window_halved_if("true")(fields)
    kinds = layer_kinds(fields, count, every(5), window)
    shape = grouped(fields)
    made = {kind: Layer(states=(state_of(fields, kind, shape, window),)) for kind in set(kinds)}
    return _share_last(fields, [made[kind] for kind in kinds], kinds)


def _gemma4(pattern: Pattern) -> LayersOf:
    """Return the reader of Gemma 4: full layers are wider, and may have fewer KV heads.

    `attention_k_eq_v` spares a projection, not a tensor: keys are rotated and normalised, values
    are not, so both are kept.
    """

    def layers_of(fields: Fields) -> list[Layer]:
        count = fields.layers()
        window = window_halved_if("all")(fields)
        kinds = layer_kinds(fields, count, pattern, window)
        if kinds[-1] != FULL:
            kinds[-1] = FULL
            fields.assume(
                "last_layer_full",
                "{model_type} has full attention in its last layer whatever the file says",
                model_type=fields.model_type,
            )
        narrow = grouped(fields)
        own = per_layer(fields, count)
        wide = narrow if own else _global_shape(fields, narrow)
        fields.seen("global_head_dim", "num_global_key_value_heads", "attention_k_eq_v")
        made = {
            kind: Layer(states=(state_of(fields, kind, wide if kind == FULL else narrow, window),))
            for kind in set(kinds)
        }
        layers = [made[kind] for kind in kinds]
        for index, layer_fields in own.items():
            shape = grouped(layer_fields)
            layers[index] = Layer(states=(state_of(layer_fields, kinds[index], shape, window),))
        return _share_last(fields, layers, kinds)

    return layers_of


def _global_shape(fields: Fields, narrow: HeadShape) -> HeadShape:
    width = fields.integer("global_head_dim", high=MAX_DIM, otherwise=GLOBAL_HEAD_DIM)
    heads = fields.integer_or_none("num_global_key_value_heads", high=MAX_HEADS)
    if heads is None or not fields.flag("attention_k_eq_v", otherwise=_is_ungated(fields)):
        heads = narrow.kv_heads
    return HeadShape(kv_heads=heads, k_dim=width, v_dim=width)


def _is_ungated(fields: Fields) -> bool:
    """Return whether the type has no `attention_k_eq_v` at all; its KV heads then always count."""
    return fields.model_type == "diffusion_gemma_text"


def _share_last(fields: Fields, layers: list[Layer], kinds: list[str]) -> list[Layer]:
    """Return the layers with the last `num_kv_shared_layers` reading the last own of their kind."""
    count = len(layers)
    shared = fields.integer_or_none("num_kv_shared_layers", low=0, high=MAX_LAYERS) or 0
    if shared == 0:
        return layers
    first = count - shared
    if first <= 0:
        raise Conflict(
            "{field} is {value}, and a model of {count} layers must keep some itself",
            field=fields.at("num_kv_shared_layers"),
            value=shared,
            count=count,
        )
    sources = {kind: index for index, kind in enumerate(kinds[:first])}
    found = layers[:first]
    for kind in kinds[first:]:
        if kind not in sources:
            raise Conflict(
                "{field} is {value}: no earlier layer keeps what a {kind} layer could share",
                field=fields.at("num_kv_shared_layers"),
                value=shared,
                kind=kind,
            )
        found.append(Layer(states=(Shared(with_layer=sources[kind]),)))
    return found


def _hunyuan_layers(fields: Fields) -> list[Layer]:
    """Return Hunyuan-Large's layers: with `use_cla`, those of a group share the first one's.

    https://arxiv.org/abs/2411.02265, section 2.1 (cross-layer attention).
    """
    if fields.says("kv_lora_rank"):
        raise Unsupported(
            "{field} is set, and {model_type} is not known with latent attention",
            field=fields.at("kv_lora_rank"),
            model_type=fields.model_type,
        )
    count = fields.layers()
    own = Layer(states=(grouped(fields).full(),))
    factor = fields.integer_or_none("cla_share_factor", high=MAX_LAYERS)
    if not fields.flag("use_cla"):
        return [own] * count
    if factor is None:
        raise fields.missing("cla_share_factor")
    return [
        Layer(states=(Shared(with_layer=index - index % factor),)) if index % factor else own
        for index in range(count)
    ]


_GEMMA4 = "Transformers 5.24 models/gemma4/configuration_gemma4.py"

FAMILIES: tuple[Family, ...] = (
    Family(
        name="gemma3n",
        model_types=("gemma3n_text",),
        layers=_gemma3n_layers,
        source="Transformers 5.24 models/gemma3n/configuration_gemma3n.py",
    ),
    Family(
        name="gemma4",
        model_types=("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"),
        layers=_gemma4(every(6)),
        source=_GEMMA4,
    ),
    Family(
        name="hunyuan",
        model_types=("hunyuan",),
        layers=_hunyuan_layers,
        draft=like_the_last(_hunyuan_layers),
        aliases={"head_dim": "attention_head_dim"},
        source="https://arxiv.org/abs/2411.02265",
    ),
)
