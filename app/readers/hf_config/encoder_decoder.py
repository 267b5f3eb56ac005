"""Decoders that also attend to an encoder: each layer keeps its own positions and the encoder's.

The encoder's length is what the caller says, else the longest that the config states, labelled as
assumed; a model that fixes it (Whisper pads its audio to 30 s) keeps that. Without any of these the
config is refused, naming the length.
"""

from __future__ import annotations

from collections.abc import Callable

from app.domain.errors import Missing, Unsupported
from app.domain.state import (
    MAX_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TOKENS,
    CrossAttention,
    FullAttention,
    Layer,
    State,
)
from app.readers.hf_config.attention import (
    HeadShape,
    grouped,
    head_width,
    multi_head,
    must_divide,
)
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import every, layer_kinds, state_of, window_size

# Where configs state the longest input of an encoder.
LONGEST = ("max_source_positions", "max_encoder_position_embeddings", "max_position_embeddings",
           "n_positions")  # fmt: skip


def encoder_length(fields: Fields, encoder: Fields | None = None) -> int:
    """Return how many positions the encoder gives.

    Raises:
        Missing: when neither the caller nor the config says.

    """
    if fields.encoder_tokens is not None:
        return fields.encoder_tokens
    source = fields if encoder is None else encoder
    for name in LONGEST:
        if source.says(name):
            length = source.integer(name, high=MAX_TOKENS)
            return _assumed(fields, length, name)
    for name in LONGEST:
        length_or_none = source.integer_or_none(name, high=MAX_TOKENS)
        if length_or_none is not None:
            return _assumed(fields, length_or_none, name)
    raise Missing(
        "{field} is missing, and the config names no longest input of its encoder",
        field="encoder_tokens",
    )


def _assumed(fields: Fields, length: int, name: str) -> int:
    fields.assume(
        "encoder_longest",
        "the encoder's input is taken to be as long as {field} allows, {value} positions",
        field=name,
        value=length,
    )
    return length


def fixed_length(fields: Fields) -> int:
    """Return the length of an encoder that pads its input to one length."""
    length = fields.integer("max_source_positions", high=MAX_TOKENS)
    if fields.encoder_tokens not in (None, length):
        fields.note(
            "encoder_fixed",
            "{model_type} pads its input: the encoder always gives {value} positions",
            model_type=fields.model_type,
            value=length,
        )
    return length


def crossed(shape: HeadShape, own: State, length: int) -> Layer:
    """Return a layer that keeps its own positions and, with the same heads, the encoder's."""
    cross = CrossAttention(
        kv_heads=shape.kv_heads, k_dim=shape.k_dim, v_dim=shape.v_dim, encoder_tokens=length
    )
    return Layer(states=(own, cross))


def _every_layer(
    layers: Callable[[Fields], int],
    heads: Callable[[Fields], HeadShape],
    length: Callable[[Fields], int] = encoder_length,
) -> Callable[[Fields], list[Layer]]:
    def layers_of(fields: Fields) -> list[Layer]:
        shape = heads(fields)
        return [crossed(shape, shape.full(), length(fields))] * layers(fields)

    return layers_of


# Heads and layers of each family's decoder


def _bart_heads(fields: Fields) -> HeadShape:
    heads = fields.heads("decoder_attention_heads")
    field = fields.at("decoder_attention_heads")
    width = must_divide(fields.dim("d_model", "hidden_size"), heads, field, "heads")
    return HeadShape(kv_heads=heads, k_dim=width, v_dim=width)


def _t5_heads(fields: Fields) -> HeadShape:
    width = fields.dim("d_kv")
    return HeadShape(kv_heads=fields.heads("num_heads"), k_dim=width, v_dim=width)


def _t5_layers(fields: Fields) -> int:
    """As many decoder layers as encoder layers unless the file says otherwise."""
    if fields.says("num_decoder_layers"):
        fields.key("num_layers")
        return fields.layers("num_decoder_layers")
    return fields.layers("num_layers")


def _prophetnet_heads(fields: Fields) -> HeadShape:
    heads = fields.heads("num_decoder_attention_heads")
    field = fields.at("num_decoder_attention_heads")
    width = must_divide(fields.dim("hidden_size"), heads, field, "heads")
    return HeadShape(kv_heads=heads, k_dim=width, v_dim=width)


def _moonshine_heads(fields: Fields) -> HeadShape:
    heads = fields.heads("decoder_num_attention_heads", "num_attention_heads")
    kv_heads = heads
    if fields.says("decoder_num_key_value_heads") or fields.says("num_key_value_heads"):
        kv_heads = fields.integer(
            "decoder_num_key_value_heads", "num_key_value_heads", high=MAX_HEADS
        )
    width = fields.integer_or_none("head_dim", high=MAX_DIM) or must_divide(
        fields.dim("hidden_size"), heads, fields.at("decoder_num_attention_heads"), "heads"
    )
    return HeadShape(kv_heads=kv_heads, k_dim=width, v_dim=width)


# Wrappers whose decoder has a config of its own


def _t5gemma(part_type: str, period: int) -> Callable[[Fields], list[Layer]]:
    """T5Gemma: a Gemma decoder, some of its layers windowed, with cross-attention in each."""

    def layers_of(fields: Fields) -> list[Layer]:
        decoder = _part(fields, "decoder", part_type)
        encoder = fields.part("encoder")
        if encoder is not None and not _says_longest(encoder):
            encoder = encoder.part("text_config") or encoder
        decoder.encoder_tokens = fields.encoder_tokens
        length = encoder_length(decoder, encoder)
        window = window_size(decoder)
        pattern = every(period, "sliding_window_pattern")
        kinds = layer_kinds(decoder, decoder.layers(), pattern, window)
        shape = grouped(decoder)
        made = {
            kind: crossed(shape, state_of(decoder, kind, shape, window), length)
            for kind in set(kinds)
        }
        return [made[kind] for kind in kinds]

    return layers_of


def _says_longest(fields: Fields) -> bool:
    return any(fields.says(name) for name in LONGEST)


def _part(fields: Fields, name: str, model_type: str) -> Fields:
    part = fields.part(name, model_type=model_type)
    if part is None:
        raise fields.missing(name)
    return part


# Types of decoder that a wrapper may give an encoder, and whose heads all keep keys and values.
_PLAIN_DECODERS = frozenset({
    "bert", "bert-generation", "camembert", "data2vec-text", "electra", "ernie", "gpt2",
    "megatron-bert", "musicgen_decoder", "musicgen_melody_decoder", "rembert", "roberta",
    "roberta-prelayernorm", "roc_bert", "roformer", "xglm", "xlm-roberta", "xlm-roberta-xl",
    "xmod",
})  # fmt: skip
_BART_DECODERS = frozenset({"bart", "mbart", "trocr", "pegasus", "blenderbot", "marian"})


def _decoder_alone(fields: Fields) -> list[Layer]:
    """A decoder by itself attends to an encoder only where the caller gives a length."""
    if fields.model_type == "trocr":
        shape, count = _bart_heads(fields), fields.layers("decoder_layers")
    else:
        shape, count = multi_head(fields), fields.layers()
    if fields.encoder_tokens is None:
        fields.assume(
            "decoder_alone", "no encoder's length is given: the decoder is taken to run alone"
        )
        return [Layer(states=(shape.full(),))] * count
    return [crossed(shape, shape.full(), fields.encoder_tokens)] * count


def _encoder_decoder(fields: Fields) -> list[Layer]:
    """Any decoder given a cross-attention to any encoder (BERT to BERT, TrOCR, Donut, MusicGen)."""
    decoder = _part(fields, "decoder", "bert")
    encoder = next(
        (part for name in ("encoder", "text_encoder") if (part := fields.part(name))), None
    )
    length = encoder_length(decoder, encoder)
    if decoder.model_type in _BART_DECODERS:
        shape, count = _bart_heads(decoder), decoder.layers("decoder_layers")
    elif decoder.model_type in _PLAIN_DECODERS:
        shape, count = multi_head(decoder), decoder.layers()
    else:
        raise Unsupported(
            "{field} {value} is not known as the decoder of an encoder",
            field=decoder.at("model_type"),
            value=decoder.model_type,
        )
    return [crossed(shape, shape.full(), length)] * count


# Cross-attention in layers of their own


def _mllama(fields: Fields) -> list[Layer]:
    """Llama 3.2 Vision: some layers attend to the image only, and keep nothing of the text.

    Without a length, one image of all its tiles is assumed: each tile gives a position a patch and
    one for its class.
    """
    text = fields.part("text_config", model_type="mllama_text_model") or fields
    count = text.layers()
    shape = grouped(text)
    crossing = text.integers("cross_attention_layers", high=MAX_LAYERS)
    if crossing is None:
        raise text.missing("cross_attention_layers")
    cross = Layer(
        states=(
            CrossAttention(
                kv_heads=shape.kv_heads,
                k_dim=shape.k_dim,
                v_dim=shape.v_dim,
                encoder_tokens=_image_length(fields),
            ),
        )
    )
    own = Layer(states=(shape.full(),))
    crosses = set(crossing)
    return [cross if index in crosses else own for index in range(count)]


def _image_length(fields: Fields) -> int:
    if fields.encoder_tokens is not None:
        return fields.encoder_tokens
    vision = fields.part("vision_config")
    if vision is None:
        raise Missing(
            "{field} is missing, and the config does not describe its images",
            field="encoder_tokens",
        )
    side = vision.integer("image_size", high=MAX_DIM) // vision.integer("patch_size", high=MAX_DIM)
    tiles = vision.integer("max_num_tiles", high=MAX_LAYERS, otherwise=4)
    length = tiles * (side * side + 1)
    fields.assume(
        "one_image",
        "cross-attention is taken to see one image of {tiles} tiles, {value} positions",
        tiles=tiles,
        value=length,
    )
    return length


def _dia(fields: Fields) -> list[Layer]:
    """Dia: the cross-attention has heads and a width of its own."""
    decoder = _part(fields, "decoder_config", "dia_decoder")
    width = head_width(decoder)
    own = FullAttention(
        kv_heads=decoder.integer("num_key_value_heads", high=MAX_HEADS, otherwise=4),
        k_dim=width,
        v_dim=width,
    )
    across = decoder.integer("cross_head_dim", high=MAX_DIM, otherwise=128)
    heads = decoder.integer("cross_num_key_value_heads", high=MAX_HEADS, otherwise=16)
    shape = HeadShape(kv_heads=heads, k_dim=across, v_dim=across)
    length = encoder_length(decoder, fields.part("encoder_config"))
    return [crossed(shape, own, length)] * decoder.layers()


_READS = frozenset({
    "cross_attention_hidden_size", "add_cross_attention", "num_key_value_heads", "head_dim",
    "attention_window", "block_size", "num_random_blocks", "attention_type", "conv_kernel_sizes",
    "conv_channels", "num_conv_layers", "max_source_positions", "encoder_layers", "layer_types",
    "local_radius", "global_block_size", "encoder_attention_type", "num_global_tokens",
    "stagger_local_blocks", "sliding_window", "cross_attention_layers",
    "pad_head_dim_to_multiple_of",
    "conv_depthwise_kernel_size", "speech_encoder_chunk_size", "speech_encoder_left_chunk_num",
    "add_inner_model_for_cross_attention", "num_conv_pos_embeddings",
    "num_conv_pos_embedding_groups",
})  # fmt: skip
_BART = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "m2m_100",
    "marian", "mbart", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "seamless_m4t",
    "seamless_m4t_v2", "speech_to_text",
)  # fmt: skip
_T5 = ("longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5")

_WRAPPERS = ("encoder-decoder", "musicgen", "musicgen_melody", "speech-encoder-decoder",
             "vision-encoder-decoder")  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family(
        name="bart",
        model_types=_BART,
        layers=_every_layer(lambda fields: fields.layers("decoder_layers"), _bart_heads),
        reads=_READS,
        source="https://arxiv.org/abs/1910.13461, Transformers 5.24 models/bart",
    ),
    Family(
        name="whisper",
        model_types=("whisper",),
        layers=_every_layer(
            lambda fields: fields.layers("decoder_layers"), _bart_heads, fixed_length
        ),
        reads=_READS,
        source="https://arxiv.org/abs/2212.04356, Transformers 5.24 models/whisper",
    ),
    Family(
        name="t5",
        model_types=_T5,
        layers=_every_layer(_t5_layers, _t5_heads),
        reads=_READS,
        source="https://arxiv.org/abs/1910.10683, Transformers 5.24 models/t5",
    ),
    Family(
        name="prophetnet",
        model_types=("prophetnet",),
        layers=_every_layer(lambda fields: fields.layers("num_decoder_layers"), _prophetnet_heads),
        reads=_READS,
        source="https://arxiv.org/abs/2001.04063, Transformers 5.24 models/prophetnet",
    ),
    Family(
        name="moonshine",
        model_types=("moonshine",),
        layers=_every_layer(
            lambda fields: fields.layers("decoder_num_hidden_layers", "num_hidden_layers"),
            _moonshine_heads,
        ),
        reads=_READS,
        source="https://arxiv.org/abs/2410.15608, Transformers 5.24 models/moonshine",
    ),
    Family(
        name="t5gemma",
        model_types=("t5gemma",),
        layers=_t5gemma("t5_gemma_module", 2),
        nested=True,
        reads=_READS,
        source="https://arxiv.org/abs/2504.06225, Transformers 5.24 models/t5gemma",
    ),
    Family(
        name="t5gemma2",
        model_types=("t5gemma2",),
        layers=_t5gemma("t5gemma2_decoder", 6),
        nested=True,
        reads=_READS,
        source="Transformers 5.24 models/t5gemma2/configuration_t5gemma2.py",
    ),
    Family(
        name="encoder_decoder",
        model_types=_WRAPPERS,
        layers=_encoder_decoder,
        nested=True,
        reads=_READS,
        source="https://arxiv.org/abs/1907.12461, Transformers 5.24 models/encoder_decoder",
    ),
    Family(
        name="trocr",
        model_types=("trocr",),
        layers=_decoder_alone,
        reads=_READS,
        source="https://arxiv.org/abs/2109.10282, Transformers 5.24 models/trocr",
    ),
    Family(
        name="musicgen_decoder",
        model_types=("musicgen_decoder", "musicgen_melody_decoder"),
        layers=_decoder_alone,
        defaults={"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
        reads=_READS,
        source="https://arxiv.org/abs/2306.05284, Transformers 5.24 models/musicgen",
    ),
    Family(
        name="mllama",
        model_types=("mllama", "mllama_text_model"),
        layers=_mllama,
        nested=True,
        reads=_READS,
        source="https://arxiv.org/abs/2407.21783, Transformers 5.24 models/mllama",
    ),
    Family(
        name="dia",
        model_types=("dia",),
        layers=_dia,
        nested=True,
        reads=_READS,
        source="Transformers 5.24 models/dia/configuration_dia.py",
    ),
)
