"""Fields that speak of special attention: one that nobody read is refused, never passed over.

A plain decoder whose config suddenly names a window, an index, a state or a sharing of keys is no
plain decoder. The names below that match and yet change nothing of what layers keep are listed.
"""

from __future__ import annotations

import re
from functools import lru_cache

from app.domain.errors import Unsupported, shown
from app.readers.hf_config.fields import Fields

_LONGEST_NAME = 200

_SPECIAL = re.compile(
    r"window|sliding|^swa_|chunk|spars|ssm|mamba|conv(_|\d|$)|recur|rwkv|kda|delta|latent|lora_rank"
    r"|linear_(attn|attention|key|num|val|conv|head)|index_|indexer|compress|hybrid|retention"
    r"|(share|shared)_kv|kv_(share|source|layer|lora|head)|head_kv|cla(_|$)|multi_query|query_group"
    r"|cross_(attention|attn|layer)|(local|global)_(attn|attention)|layer_types|blocks?_(type|conf)"
    r"|attn_(type|layer|config)|attention_(type|pattern|layer|sink|chunk)|memory|mem_|landmark"
    r"|state_(size|dim)|_d_state|loop|streaming|n_sink|per_layer|layer_group|depth_attention"
    r"|kv_channels|head_dim|key_size|nope"
)

# Matching names that say nothing of what a layer keeps, by the reason why they are safe.
_HARMLESS = frozenset({
    # Where experts stand.
    "decoder_sparse_step", "mlp_layer_types", "mtp_mlp_layer_types", "encoder_sparse_step",
    "num_sparse_encoder_layers", "num_sparse_decoder_layers",
    # Quantisation and pruning of weights.
    "sparsity_config", "compression_config", "quantization_config", "global_compression_ratio",
    "for_llm_compressor",
    # How a computation is cut, not what is kept.
    "chunk_size_feed_forward", "chunk_size", "mamba_chunk_size", "hc_lowrank", "memory_efficient",
    "gradient_checkpointing", "use_mem_rope", "use_mem_eff_path", "use_mem_efficient_attention",
    # Positions: which layers rotate, and how.
    "nope_layer_interval", "no_rope_layers", "no_rope_layer_interval", "rope_local_base_freq",
    # Low rank of queries or outputs, heads and choices of an index: none of it is kept.
    "q_lora_rank", "o_lora_rank", "index_n_heads", "index_topk", "indexer_rope_interleave",
    "num_attention_heads_per_layer", "attention_k_eq_v",
    # Vision, audio and training.
    "fullatt_block_indexes", "deepstack_visual_indexes", "use_unified_vision_chunk",
    "image_token_compression_method", "img_token_compression_config",
    "cross_attention_hidden_size", "vocab_size_per_layer_input", "hidden_size_per_layer_input",
    "context_window_size", "ignore_index",
})  # fmt: skip

# Names of something else: a token's index, a bias or a norm, an expert, an initial value.
_OTHER = re.compile(
    r"token_(index|id)|_token$|activation_|_act$|initializer|init_|scoring|dropout|_theta$|string"
    r"|multiplier|_bias$|norm|_eps$|_scale$|^_|expert|router|moe|auto_map|softcap|_coef"
)


@lru_cache(maxsize=4096)
def is_special(name: str) -> bool:
    """Return whether a field of that name may change what a layer keeps."""
    if name in _HARMLESS or len(name) > _LONGEST_NAME:
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
                "{field} is {value}: no {model_type} is known with this field, and it may change "
                "what layers keep",
                field=fields.at(name),
                value=shown(value),
                model_type=fields.model_type.strip("()"),  # a table has no type
            )
