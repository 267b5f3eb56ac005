"""Vision and audio encoders that stand before a decoder.

Shapes are those of the model classes of Transformers 5.24.0 (models/<name>/modeling_<name>.py), and
were compared with classes built without weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.errors import Conflict
from app.domain.weight_lines import Component, Cut, Part, Place, WeightBlock
from app.readers.weights.fields import MAX_LAYERS, Fields
from app.readers.weights.lines import Lines, convolution, linear, norm, table, vector
from app.readers.weights.parts import FeedForward

ATTENTION, EMBEDDING, OTHER = Component.ATTENTION, Component.EMBEDDING, Component.OTHER
Tower = Callable[[Fields], list[WeightBlock]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderLayer:
    """One layer of an encoder: attention and a network, each with a norm before it.

    `fused` names one matrix for queries, keys and values; `head_norm` puts a norm on them.
    """

    width: int
    inner: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    at: str = "self_attn"
    names: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "out_proj")
    fused: str = ""
    bias: bool = True
    key_bias: bool = True
    out_bias: bool = True
    head_norm: bool = False
    mlp: str = "mlp"
    mlp_names: tuple[str, ...] = ("fc1", "fc2")
    gated: bool = False
    mlp_bias: bool = True
    norms: tuple[str, ...] = ("layer_norm1", "layer_norm2")
    norm_bias: bool = True

    def lines(self) -> Lines:
        """Return the layer's lines."""
        dim, keys = self.head_dim or self.width // self.heads, self.kv_heads or self.heads
        q, k, v, o = (f"{self.at}.{name}" if self.at else name for name in self.names)
        rows, key_rows = self.heads * dim, keys * dim
        if self.fused:
            into = linear(f"{self.at}.{self.fused}", ATTENTION, rows + 2 * key_rows, self.width,
                          bias=self.bias, cut=Cut.EVEN, units=keys)  # fmt: skip
        else:
            into = (
                *linear(q, ATTENTION, rows, self.width, bias=self.bias, cut=Cut.EVEN,
                        units=self.heads),
                *linear(k, ATTENTION, key_rows, self.width, bias=self.bias and self.key_bias,
                        cut=Cut.EVEN, units=keys),
                *linear(v, ATTENTION, key_rows, self.width, bias=self.bias, cut=Cut.EVEN,
                        units=keys),
            )  # fmt: skip
        norms = tuple(
            line for name in self.norms for line in norm(name, self.width, bias=self.norm_bias)
        )
        head_norms: Lines = ()
        if self.head_norm:
            head_norms = (*norm(f"{self.at}.q_norm", dim, component=ATTENTION),
                          *norm(f"{self.at}.k_norm", dim, component=ATTENTION))  # fmt: skip
        network = FeedForward(at=self.mlp, names=self.mlp_names, gated=self.gated)
        return (
            *into,
            *linear(o, ATTENTION, self.width, rows, bias=self.out_bias, cut=Cut.EVEN,
                    units=self.heads, axis=1),
            *head_norms,
            *network.of_width(self.inner, self.width, bias=self.mlp_bias),
            *norms,
        )  # fmt: skip


GATED_NAMES = ("gate_proj", "up_proj", "down_proj")


def tower(
    layers: int,
    layer: Lines,
    outside: Lines,
    *,
    prefix: str = "vision_tower.encoder.layers.{layer}",
    part: Part = Part.VISION,
) -> list[WeightBlock]:
    """Return a tower of equal layers and what stands outside them."""
    return [
        WeightBlock(part=part, place=Place.FIRST, lines=outside),
        WeightBlock(
            part=part, place=Place.LAYERS, lines=layer, layers=tuple(range(layers)), prefix=prefix
        ),
    ]


def depth(fields: Fields, name: str = "num_hidden_layers") -> int:
    """Return a tower's number of layers."""
    return fields.size(name, low=0, high=MAX_LAYERS)


def squares(fields: Fields) -> int:
    """Return how many patches a square image of `image_size` has."""
    image, patch = fields.size("image_size"), fields.size("patch_size")
    if image < patch:
        raise Conflict("{field} {image} is smaller than a patch of {patch}",
                       field=fields.at("image_size"), image=image, patch=patch)  # fmt: skip
    return (image // patch) ** 2


def patches(
    name: str, fields: Fields, width: int, *, bias: bool = True, frames: bool = False
) -> Lines:
    """Return the convolution that turns patches of pixels into vectors."""
    # Towers call them in_channels or num_channels; the class's default tells which.
    named = "num_channels" if "num_channels" in fields.facts.values else "in_channels"
    channels, patch = fields.size(named), fields.size("patch_size")
    time = (fields.size("temporal_patch_size"),) if frames else ()
    return convolution(name, EMBEDDING, width, channels, *time, patch, patch, bias=bias)


def usual_layer(fields: Fields, **rest: object) -> EncoderLayer:
    """Return a layer whose config names its sizes as most do."""
    return EncoderLayer(
        width=fields.size("hidden_size"),
        inner=fields.size("intermediate_size"),
        heads=fields.size("num_attention_heads"),
        **rest,  # type: ignore[arg-type]
    )


def clip(fields: Fields) -> list[WeightBlock]:
    """Return CLIP's vision tower: a class token, learned positions, norms before and behind."""
    width = fields.size("hidden_size")
    outside = (
        *vector("vision_tower.embeddings.class_embedding", EMBEDDING, width),
        *patches("vision_tower.embeddings.patch_embedding", fields, width, bias=False),
        *table("vision_tower.embeddings.position_embedding.weight", squares(fields) + 1, width),
        *norm("vision_tower.pre_layrnorm", width, bias=True),
        *norm("vision_tower.post_layernorm", width, bias=True),
    )
    return tower(depth(fields), usual_layer(fields).lines(), outside)


def _pooling_head(fields: Fields) -> Lines:
    """Return SigLIP's attention pooling, which `vision_use_head` (on by default) builds."""
    if not fields.flag("vision_use_head", otherwise=True):
        return ()
    width, inner = fields.size("hidden_size"), fields.size("intermediate_size")
    at = "vision_tower.head"
    return (
        *vector(f"{at}.probe", OTHER, 1, 1, width),
        *linear(f"{at}.attention.in_proj", OTHER, 3 * width, width, bias=True),
        *linear(f"{at}.attention.out_proj", OTHER, width, width, bias=True),
        *norm(f"{at}.layernorm", width, bias=True),
        *linear(f"{at}.mlp.fc1", OTHER, inner, width, bias=True),
        *linear(f"{at}.mlp.fc2", OTHER, width, inner, bias=True),
    )


def siglip(fields: Fields) -> list[WeightBlock]:
    """Return SigLIP's vision tower: learned positions, a norm behind."""
    width = fields.size("hidden_size")
    outside = (
        *patches("vision_tower.embeddings.patch_embedding", fields, width),
        *table("vision_tower.embeddings.position_embedding.weight", squares(fields), width),
        *norm("vision_tower.post_layernorm", width, bias=True),
        *_pooling_head(fields),
    )
    return tower(depth(fields), usual_layer(fields).lines(), outside)


def siglip2(fields: Fields) -> list[WeightBlock]:
    """Return SigLIP 2's vision tower: patches come flattened, positions are `num_patches`."""
    width, patch = fields.size("hidden_size"), fields.size("patch_size")
    pixels = fields.size("num_channels") * patch**2
    outside = (
        *linear("vision_tower.embeddings.patch_embedding", EMBEDDING, width, pixels, bias=True),
        *table("vision_tower.embeddings.position_embedding.weight", fields.size("num_patches"),
               width),
        *norm("vision_tower.post_layernorm", width, bias=True),
        *_pooling_head(fields),
    )  # fmt: skip
    return tower(depth(fields), usual_layer(fields).lines(), outside)


def pixtral(fields: Fields) -> list[WeightBlock]:
    """Return Pixtral's vision tower: no biases, rotary positions, gated networks."""
    width = fields.size("hidden_size")
    layer = usual_layer(
        fields, at="attention", names=("q_proj", "k_proj", "v_proj", "o_proj"), bias=False,
        out_bias=False, mlp="feed_forward", mlp_names=GATED_NAMES, gated=True, mlp_bias=False,
        norms=("attention_norm", "ffn_norm"), norm_bias=False,
    )  # fmt: skip
    outside = (
        *patches("vision_tower.patch_conv", fields, width, bias=False),
        *norm("vision_tower.ln_pre", width),
    )
    return tower(depth(fields), layer.lines(), outside,
                 prefix="vision_tower.transformer.layers.{layer}")  # fmt: skip


def whisper(fields: Fields) -> list[WeightBlock]:
    """Return Whisper's audio encoder: two convolutions, fixed positions, keys without bias."""
    return whisper_encoder(fields, Part.AUDIO, "audio_tower")


def whisper_encoder(fields: Fields, part: Part, at: str) -> list[WeightBlock]:
    """Return the encoder under a given name and part."""
    width = fields.size("d_model")
    layer = EncoderLayer(
        width=width, inner=fields.size("encoder_ffn_dim"),
        heads=fields.size("encoder_attention_heads"), key_bias=False, mlp="",
        norms=("self_attn_layer_norm", "final_layer_norm"),
    )  # fmt: skip
    outside = (
        *convolution(f"{at}.conv1", EMBEDDING, width, fields.size("num_mel_bins"), 3, bias=True),
        *convolution(f"{at}.conv2", EMBEDDING, width, width, 3, bias=True),
        *table(f"{at}.embed_positions.weight", fields.size("max_source_positions"), width),
        *norm(f"{at}.layer_norm", width, bias=True),
    )
    layers = depth(fields, "encoder_layers")
    return tower(layers, layer.lines(), outside, prefix=f"{at}.layers.{{layer}}", part=part)
