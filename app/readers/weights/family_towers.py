"""Vision encoders that one family has, and the table of all towers.

Shapes are those of the model classes of Transformers 5.24.0 (models/<name>/modeling_<name>.py), and
were compared with classes built without weights.
"""

from __future__ import annotations

from app.domain.weight_lines import Part, Place, WeightBlock
from app.readers.weights.fields import Fields
from app.readers.weights.lines import Lines, convolution, linear, norm, table, vector
from app.readers.weights.parts import FeedForward
from app.readers.weights.towers import (
    ATTENTION,
    EMBEDDING,
    GATED_NAMES,
    OTHER,
    EncoderLayer,
    Tower,
    clip,
    depth,
    patches,
    pixtral,
    siglip,
    siglip2,
    squares,
    tower,
    usual_layer,
    whisper,
)

# Qwen's towers


_BLOCKS = "visual.blocks.{layer}"


def qwen2(fields: Fields) -> list[WeightBlock]:
    """Return Qwen2-VL's tower, whose merger gives `hidden_size` from `embed_dim`."""
    width = fields.size("embed_dim")
    layer = EncoderLayer(
        width=width, inner=fields.whole("mlp_ratio", width), heads=fields.size("num_heads"),
        at="attn", fused="qkv", names=("q", "k", "v", "proj"), norms=("norm1", "norm2"),
    )  # fmt: skip
    merged = width * fields.size("spatial_merge_size") ** 2
    outside = (
        *patches("visual.patch_embed.proj", fields, width, bias=False, frames=True),
        *norm("visual.merger.ln_q", width, bias=True),
        *linear("visual.merger.mlp.0", OTHER, merged, merged, bias=True),
        *linear("visual.merger.mlp.2", OTHER, fields.size("hidden_size"), merged, bias=True),
    )
    return tower(depth(fields, "depth"), layer.lines(), outside, prefix=_BLOCKS)


def qwen2_5(fields: Fields) -> list[WeightBlock]:
    """Return Qwen2.5-VL's tower: gated networks, RMS norms; EXAONE 4.5 gives it fewer KV heads."""
    width = fields.size("hidden_size")
    layer = EncoderLayer(
        width=width, inner=fields.size("intermediate_size"), heads=fields.size("num_heads"),
        kv_heads=fields.count("num_key_value_heads"), at="attn", fused="qkv",
        names=("q", "k", "v", "proj"), mlp_names=GATED_NAMES, gated=True,
        norms=("norm1", "norm2"), norm_bias=False,
    )  # fmt: skip
    merged = width * fields.size("spatial_merge_size") ** 2
    outside = (
        *patches("visual.patch_embed.proj", fields, width, bias=False, frames=True),
        *norm("visual.merger.ln_q", width),
        *linear("visual.merger.mlp.0", OTHER, merged, merged, bias=True),
        *linear("visual.merger.mlp.2", OTHER, fields.size("out_hidden_size"), merged, bias=True),
    )
    return tower(depth(fields, "depth"), layer.lines(), outside, prefix=_BLOCKS)


def _qwen3_merger(at: str, fields: Fields, norm_width: int) -> Lines:
    merged = fields.size("hidden_size") * fields.size("spatial_merge_size") ** 2
    return (
        *norm(f"{at}.norm", norm_width, bias=True),
        *linear(f"{at}.linear_fc1", OTHER, merged, merged, bias=True),
        *linear(f"{at}.linear_fc2", OTHER, fields.size("out_hidden_size"), merged, bias=True),
    )


def qwen3(fields: Fields) -> list[WeightBlock]:
    """Return Qwen3-VL's tower, with a merger for each of `deepstack_visual_indexes`.

    Qwen3.5's is the same without those; its class reads no such list.
    """
    width = fields.size("hidden_size")
    merged = width * fields.size("spatial_merge_size") ** 2
    layer = EncoderLayer(
        width=width, inner=fields.size("intermediate_size"), heads=fields.size("num_heads"),
        at="attn", fused="qkv", names=("q", "k", "v", "proj"),
        mlp_names=("linear_fc1", "linear_fc2"), norms=("norm1", "norm2"),
    )  # fmt: skip
    stacks = 0
    if fields.model_type in _DEEPSTACKED:
        listed = fields.sizes("deepstack_visual_indexes")
        stacks = 3 if listed is None else len(listed)
    outside = (
        *patches("visual.patch_embed.proj", fields, width, frames=True),
        *table("visual.pos_embed.weight", fields.size("num_position_embeddings"), width),
        *_qwen3_merger("visual.merger", fields, width),
        *(line for index in range(stacks)
          for line in _qwen3_merger(f"visual.deepstack_merger_list.{index}", fields, merged)),
    )  # fmt: skip
    return tower(depth(fields, "depth"), layer.lines(), outside, prefix=_BLOCKS)


_DEEPSTACKED = frozenset({"qwen3_vl_vision", "qwen3_vl_moe_vision"})


# Other families' towers


def llama4(fields: Fields) -> list[WeightBlock]:
    """Return Llama 4's tower with the adapter behind its pixel shuffle."""
    width, patch = fields.size("hidden_size"), fields.size("patch_size")
    layer = usual_layer(
        fields, names=("q_proj", "k_proj", "v_proj", "o_proj"),
        norms=("input_layernorm", "post_attention_layernorm"),
    )  # fmt: skip
    at = "vision_model"
    outside = (
        *vector(f"{at}.class_embedding", EMBEDDING, width),
        *vector(f"{at}.positional_embedding_vlm", EMBEDDING, squares(fields) + 1, width),
        *linear(f"{at}.patch_embedding.linear", EMBEDDING, width,
                fields.size("num_channels") * patch**2),
        *norm(f"{at}.layernorm_pre", width, bias=True),
        *norm(f"{at}.layernorm_post", width, bias=True),
        *linear(f"{at}.vision_adapter.mlp.fc1", OTHER, fields.size("projector_input_dim"),
                fields.size("intermediate_size")),
        *linear(f"{at}.vision_adapter.mlp.fc2", OTHER, fields.size("projector_output_dim"),
                fields.size("projector_output_dim")),
    )  # fmt: skip
    return tower(depth(fields), layer.lines(), outside, prefix="vision_model.model.layers.{layer}")


def mllama(fields: Fields) -> list[WeightBlock]:
    """Return Mllama's tower: local layers, gated global ones, and tables for tiles.

    Tile tables have a row for each aspect ratio and one more.
    """
    width, tiles = fields.size("hidden_size"), fields.size("max_num_tiles")
    ratios = fields.items("supported_aspect_ratios")
    rows = (8 if ratios is None else len(ratios)) + 1
    places, at = squares(fields) + 1, "vision_model"
    layer = usual_layer(
        fields, names=("q_proj", "k_proj", "v_proj", "o_proj"), bias=False, out_bias=False,
        norms=("input_layernorm", "post_attention_layernorm"),
    ).lines()  # fmt: skip
    gates = (*vector("gate_attn", OTHER, 1), *vector("gate_ffn", OTHER, 1))
    tile_tables = tuple(
        line
        for name in ("pre_tile_positional_embedding", "post_tile_positional_embedding")
        for line in (
            *vector(f"{at}.{name}.gate", EMBEDDING, 1),
            *table(f"{at}.{name}.embedding.weight", rows, tiles * width),
        )
    )
    outside = (
        *vector(f"{at}.class_embedding", EMBEDDING, width),
        *patches(f"{at}.patch_embedding", fields, width, bias=False),
        *vector(f"{at}.gated_positional_embedding.gate", EMBEDDING, 1),
        *vector(f"{at}.gated_positional_embedding.embedding", EMBEDDING, places, width),
        *table(f"{at}.gated_positional_embedding.tile_embedding.weight", rows,
               tiles * places * width),
        *tile_tables,
        *norm(f"{at}.layernorm_pre", width, bias=True),
        *norm(f"{at}.layernorm_post", width, bias=True),
    )  # fmt: skip
    last = WeightBlock(
        part=Part.VISION, place=Place.LAYERS, lines=(*layer, *gates),
        layers=tuple(range(depth(fields, "num_global_layers"))),
        prefix="vision_model.global_transformer.layers.{layer}",
    )  # fmt: skip
    return [
        *tower(depth(fields), layer, outside, prefix="vision_model.transformer.layers.{layer}"),
        last,
    ]


def _clip_buffers(lines: Lines, fields: Fields) -> Lines:
    """Return the limits that Gemma 4's clipped linear layers keep: four buffers for each matrix."""
    if not fields.flag("use_clipped_linears"):
        return ()
    limits = ("input_min", "input_max", "output_min", "output_max")
    return tuple(
        line
        for matrix in lines
        if matrix.name.endswith(".linear.weight")
        for limit in limits
        for line in vector(f"{matrix.name.removesuffix('.linear.weight')}.{limit}", OTHER,
                           is_buffer=True)
    )  # fmt: skip


def gemma4(fields: Fields) -> list[WeightBlock]:
    """Return Gemma 4's vision tower: two tables of positions, norms on both sides, no biases."""
    width = fields.size("hidden_size")
    layer = usual_layer(
        fields, kv_heads=fields.size("num_key_value_heads"), head_dim=fields.size("head_dim"),
        names=tuple(f"{name}.linear" for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        bias=False, out_bias=False, head_norm=True, gated=True, mlp_bias=False,
        mlp_names=tuple(f"{name}.linear" for name in GATED_NAMES),
        norms=("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
               "post_feedforward_layernorm"),
        norm_bias=False,
    ).lines()  # fmt: skip
    at, patch = "vision_tower", fields.size("patch_size")
    outside = (
        *vector(f"{at}.patch_embedder.position_embedding_table", EMBEDDING, 2,
                fields.size("position_embedding_size"), width),
        *linear(f"{at}.patch_embedder.input_proj", EMBEDDING, width, 3 * patch**2),
    )  # fmt: skip
    if fields.flag("standardize"):
        outside += vector(f"{at}.std_bias", OTHER, width, is_buffer=True)
        outside += vector(f"{at}.std_scale", OTHER, width, is_buffer=True)
    return tower(depth(fields), (*layer, *_clip_buffers(layer, fields)), outside)


def intern(fields: Fields) -> list[WeightBlock]:
    """Return InternViT: a class token, learned positions, scaled residuals, optional head norms."""
    width, rms = fields.size("hidden_size"), fields.word("norm_type") == "rms_norm"
    layer = usual_layer(
        fields, at="attn", fused="qkv", names=("q", "k", "v", "proj"),
        bias=fields.flag("qkv_bias"), norms=("norm1", "norm2"), norm_bias=not rms,
    ).lines()  # fmt: skip
    scales = (*vector("ls1", OTHER, width), *vector("ls2", OTHER, width))
    head_norms: Lines = ()
    if fields.flag("qk_normalization"):
        head_norms = (*norm("attn.q_norm", width, component=ATTENTION),
                      *norm("attn.k_norm", width, component=ATTENTION))  # fmt: skip
    at, patch = "vision_model.embeddings", fields.size("patch_size")
    outside = (
        *vector(f"{at}.class_embedding", EMBEDDING, 1, 1, width),
        *convolution(f"{at}.patch_embedding", EMBEDDING, width, 3, patch, patch, bias=True),
        *vector(f"{at}.position_embedding", EMBEDDING, 1, squares(fields) + 1, width),
    )
    return tower(depth(fields), (*layer, *head_norms, *scales), outside,
                 prefix="vision_model.encoder.layers.{layer}")  # fmt: skip


def kimi(fields: Fields) -> list[WeightBlock]:
    """Return Kimi K2.5's tower: a grid of learned positions."""
    width, patch = fields.size("hidden_size"), fields.size("patch_size")
    layer = usual_layer(
        fields, at="attn", names=("q_proj", "k_proj", "v_proj", "proj"), norms=("norm1", "norm2")
    )
    at = "vision_tower"
    outside = (
        *convolution(f"{at}.patch_embed.proj", EMBEDDING, width, 3, patch, patch, bias=True),
        *vector(f"{at}.patch_embed.pos_emb.position_embeddings", EMBEDDING,
                fields.size("pos_emb_height"), fields.size("pos_emb_width"), width),
        *norm(f"{at}.final_layernorm", width, bias=True),
    )  # fmt: skip
    return tower(depth(fields), layer.lines(), outside, prefix="vision_tower.layers.{layer}")


def minimax(fields: Fields) -> list[WeightBlock]:
    """Return MiniMax M3's tower: CLIP's layers on patches in time, rotary positions."""
    width = fields.size("hidden_size")
    outside = (
        *patches("vision_tower.embeddings.proj", fields, width, bias=False, frames=True),
        *norm("vision_tower.pre_layrnorm", width, bias=True),
    )
    return tower(depth(fields), usual_layer(fields).lines(), outside,
                 prefix="vision_tower.layers.{layer}")  # fmt: skip


def muse(fields: Fields) -> list[WeightBlock]:
    """Return Muse Glimmer's tower: flattened patches in time, a grid of positions."""
    width, patch = fields.size("hidden_size"), fields.size("patch_size")
    layer = usual_layer(
        fields, at="attn", names=("q_proj", "k_proj", "v_proj", "proj"), norms=("norm1", "norm2")
    )
    pixels, at = 3 * fields.size("patch_temporal") * patch**2, "vision_tower"
    outside = (
        *linear(f"{at}.patch_embedder.patch_embedding", EMBEDDING, width, pixels),
        *table(f"{at}.patch_embedder.position_embedding_table.weight",
               fields.size("max_position_embeddings"), width),
        *norm(f"{at}.ln_pre", width, bias=True),
        *norm(f"{at}.ln_post", width, bias=True),
    )  # fmt: skip
    return tower(depth(fields), layer.lines(), outside, prefix="vision_tower.layers.{layer}")


def step(fields: Fields) -> list[WeightBlock]:
    """Return Step 3.7's tower: scaled residuals, two convolutions that halve the grid."""
    width = fields.size("hidden_size")
    layer = EncoderLayer(
        width=width, inner=fields.whole("mlp_ratio", width),
        heads=fields.size("num_attention_heads"), norms=("layernorm_before", "layernorm_after"),
    )  # fmt: skip
    scales = (*vector("lambda_1", OTHER, width), *vector("lambda_2", OTHER, width))
    at = "vision_model"
    outside = (
        *patches(f"{at}.embeddings.patch_embedding", fields, width, bias=False),
        *table(f"{at}.embeddings.position_embedding.weight", squares(fields), width),
        *norm(f"{at}.pre_layernorm", width, bias=True),
        *convolution(f"{at}.downsampler1", OTHER, 2 * width, width, 3, 3, bias=True),
        *convolution(f"{at}.downsampler2", OTHER, 4 * width, 2 * width, 3, 3, bias=True),
    )
    return tower(depth(fields), (*scales, *layer.lines()), outside,
                 prefix="vision_model.layers.{layer}")  # fmt: skip


def _glm_merger(fields: Fields, inner: int) -> Lines:
    width, out = fields.size("hidden_size"), fields.size("out_hidden_size")
    merge, at = fields.size("spatial_merge_size"), "visual"
    return (
        *linear(f"{at}.merger.proj", OTHER, out, out),
        *norm(f"{at}.merger.post_projection_norm", out, bias=True),
        *FeedForward(at=f"{at}.merger", component=OTHER).of_width(inner, out),
        *convolution(f"{at}.downsample", OTHER, out, width, merge, merge, bias=True),
        *norm(f"{at}.post_layernorm", width),
    )


def glm4v(fields: Fields) -> list[WeightBlock]:
    """Return GLM-4.1V's tower: networks as wide as the output, a merger of the config's width."""
    width, bias = fields.size("hidden_size"), fields.flag("attention_bias")
    layer = EncoderLayer(
        width=width, inner=fields.size("out_hidden_size"), heads=fields.size("num_heads"),
        at="attn", fused="qkv", names=("q", "k", "v", "proj"), bias=bias, out_bias=False,
        mlp_names=GATED_NAMES, gated=True, mlp_bias=False, norms=("norm1", "norm2"),
        norm_bias=False,
    )  # fmt: skip
    outside = (
        *table("visual.embeddings.position_embedding.weight", squares(fields), width),
        *patches("visual.patch_embed.proj", fields, width, frames=True),
        *norm("visual.post_conv_layernorm", width),
        *_glm_merger(fields, fields.size("intermediate_size")),
    )
    return tower(depth(fields, "depth"), layer.lines(), outside, prefix=_BLOCKS)


def glm5(fields: Fields) -> list[WeightBlock]:
    """Return GLM-5-Next's tower: as GLM-4.1V's, with head norms and biases, no positions."""
    width, bias = fields.size("hidden_size"), fields.flag("attention_bias")
    layer = EncoderLayer(
        width=width, inner=fields.size("intermediate_size"), heads=fields.size("num_heads"),
        at="attn", fused="qkv", names=("q", "k", "v", "proj"), bias=bias, out_bias=bias,
        head_norm=True, mlp_names=GATED_NAMES, gated=True, norms=("norm1", "norm2"),
        norm_bias=False,
    )  # fmt: skip
    outside = (
        *patches("visual.patch_embed.proj", fields, width, frames=True),
        *_glm_merger(fields, fields.size("projection_intermediate_size")),
    )
    return tower(depth(fields, "depth"), layer.lines(), outside, prefix=_BLOCKS)


TOWERS: dict[str, Tower] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip2,
    "pixtral": pixtral,
    "qwen2_vl_vision": qwen2,
    "qwen2_5_vl_vision": qwen2_5,
    "exaone4_5_vision": qwen2_5,
    "qwen3_vl_vision": qwen3,
    "qwen3_vl_moe_vision": qwen3,
    "qwen3_5_vision": qwen3,
    "qwen3_5_moe_vision": qwen3,
    "llama4_vision_model": llama4,
    "mllama_vision_model": mllama,
    "gemma4_vision": gemma4,
    "intern_vit_6b": intern,
    "kimi_k25_vision": kimi,
    "minimax_m3_vl_vision": minimax,
    "muse_glimmer_vision": muse,
    "step3p5_vision": step,
    "glm4v_vision": glm4v,
    "glm4v_moe_vision": glm4v,
    "glm5_next_vision": glm5,
    "voxtral_encoder": whisper,
    "qwen2_audio_encoder": whisper,
}
