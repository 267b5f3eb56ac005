"""Fields that speak of special attention: one that nobody read is refused, never passed over.

A plain decoder whose config suddenly names a window, an index, a state or a sharing of keys is no
plain decoder. The names below that match and yet change nothing of what layers keep are listed.
"""

from __future__ import annotations

import re
from functools import lru_cache

from app.domain.errors import Unsupported, shown
from app.readers.hf_config.fields import Fields

_SPECIAL = re.compile(
    r"window|sliding|^swa_|chunk|spars|ssm|mamba|conv|recur|rwkv|linear_(attn|attention|key|num|val)"
    r"|kda|delta|latent|lora_rank|index_|indexer|compress|(share|shared)_kv|kv_(share|source|layer)"
    r"|cla(_|$)|cross_(attention|attn|layer)|layer_types|block_(type|config)|blocks_type|hybrid"
    r"|attn_(type|layer)|attention_(type|pattern|layer)|memory|mem_|(local|global)_(attn|attention)"
    r"|state_(size|dim)|_d_state|loop|retention|landmark|attention_sink|streaming|n_sink"
    r"|kv_(heads|head|lora)|head_kv|per_layer|layer_group|depth_attention|attn_config"
    r"|multi_query|query_group|kv_channels|v_head_dim|nope|key_size|head_dim"
)

# Matching names that say nothing of what a layer keeps, with the reason they are safe.
_HARMLESS = frozenset({
    # Mixture-of-experts placement and loss.
    "decoder_sparse_step", "moe_latent_size", "mlp_layer_types", "mtp_mlp_layer_types", "num_sparse_encoder_layers",
    "num_sparse_decoder_layers", "encoder_sparse_step",
    # Quantisation and pruning of weights.
    "sparsity_config", "compression_config", "quantization_config", "global_compression_ratio",
    # How a computation is cut, not what is kept.
    "chunk_size_feed_forward", "chunk_size", "mamba_chunk_size", "hc_lowrank",
    # Positions: which layers rotate, and how.
    "nope_layer_interval", "no_rope_layers", "no_rope_layer_interval", "rope_local_base_freq",
    "qk_rope_head_dim_scale", "swa_rope_theta", "layer_rope_theta",
    # Low rank of queries or outputs: neither is kept.
    "q_lora_rank", "o_lora_rank", "index_n_heads", "index_topk",
    # Vision, audio and training.
    "fullatt_block_indexes", "deepstack_visual_indexes", "use_unified_vision_chunk",
    "image_token_compression_method", "img_token_compression_config", "drop_vision_last_layer",
    "cross_attention_hidden_size", "query_pre_attn_scalar", "attn_layer_norm",
    "num_attention_heads_per_layer", "vocab_size_per_layer_input", "hidden_size_per_layer_input",
    "context_window_size", "for_llm_compressor", "memory_efficient", "gradient_checkpointing", "ignore_index",
    "attn_logit_softcapping", "attention_k_eq_v", "string_tokens", "add_attention_sink_bias",
    "add_swa_attention_sink_bias", "add_full_attention_sink_bias", "use_mem_rope",
    "use_mem_eff_path", "use_mem_efficient_attention", "ring_attn_layers", "indexer_rope_interleave",
})  # fmt: skip

# A token or index of something else than a layer: `boi_token_index`, `image_token_index` …
_OTHER = re.compile(
    r"token_(index|id)|_token$|activation_|_act$|initializer|init_|scoring|dropout|_theta$|string"
    r"|multiplier|_bias$|norm|_eps$|_scale$|factor$|^_|expert|router|moe_layer|auto_map|rms"
)


@lru_cache(maxsize=4096)
def is_special(name: str) -> bool:
    """Return whether a field of that name may change what a layer keeps."""
    if name in _HARMLESS or len(name) > 200:
        return False
    return _SPECIAL.search(name) is not None and _OTHER.search(name) is None


def _is_off(value: object) -> bool:
    if value is None or value is False:
        return True
    if isinstance(value, (int, float)) and value == 0:
        return True
    return isinstance(value, (str, list, tuple, dict)) and not value


def refuse_unread(fields: Fields, reads: frozenset[str]) -> None:
    """Refuse a config that names special attention in a field that its family did not read.

    Raises:
        Unsupported: naming the field.

    """
    for name, value in fields.raw.items():
        if not isinstance(name, str) or name in fields.asked or name in reads:
            continue
        if is_special(name) and not _is_off(value):
            raise Unsupported(
                "{field} is {value}, which {model_type} is not known to have; "
                "what its layers keep cannot be told",
                field=fields.at(name),
                value=shown(value),
                model_type=fields.model_type,
            )
