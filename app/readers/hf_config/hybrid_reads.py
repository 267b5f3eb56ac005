"""Fields of hybrids that speak of special attention and change nothing of what layers keep.

Or that a given config may not make its family ask for: see Family.reads.
"""

from __future__ import annotations

from app.readers.hf_config.latent import LATENT_READS

LINEAR_READS = frozenset({
    "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "full_attention_interval", "layer_types",
    "mamba_ssm_dtype", "attn_output_gate", "linear_allow_neg_eigval", "linear_use_gate",
})  # fmt: skip
MAMBA_READS = frozenset({
    "mamba_d_conv", "mamba_d_state", "mamba_expand", "mamba_dt_rank", "mamba_d_head",
    "mamba_n_heads", "mamba_n_groups", "mamba_conv_bias", "mamba_proj_bias", "mamba_chunk_size",
    "mamba_inner_layernorms", "use_mamba_kernels", "use_mambapy", "mamba_rms_norm",
    "mamba_norm_before_gate",
    "mamba_use_mlp", "mamba_d_ssm", "attn_layer_indices", "attn_layer_period",
    "attn_layer_offset", "layer_types", "layers_block_type", "shared_intermediate_size",
    "num_key_value_heads", "sliding_window", "mamba_headdim", "mamba_ngroups", "n_mamba_heads",
    "use_mem_rope", "kv_channels", "num_query_groups", "hybrid_layer_ids", "attention_hidden_size",
    "attention_head_dim", "adapter_rank", "num_mem_blocks", "use_shared_attention_adapter",
    "use_shared_attention_lora", "use_shared_mlp_lora", "use_long_context", "hidden_mamba_act",
    "use_conv_bias", "add_bias_linear", "state_size", "use_shared_block_per_layer_norms",
    "attn_rotary_emb", "mlp_expansion_factor",
})  # fmt: skip
NEMOTRON_READS = frozenset({
    "hybrid_override_pattern", "layers_block_type", "mtp_layers_block_type",
    "mtp_hybrid_override_pattern", "mamba_ssm_cache_dtype", "ssm_state_size", "mamba_num_heads",
    "mamba_head_dim", "conv_kernel", "expand", "mamba_hidden_act", "mamba_proj_bias",
    "use_mamba_kernels", "use_conv_bias", "attention_head_dim", "moe_latent_size",
    "num_nextn_predict_layers", "mamba_expand", "mamba_chunk_size", "mamba_n_groups",
    "mamba_d_conv", "mamba_conv_bias", "mamba_dt_min", "mamba_dt_max", "mamba_dt_limit",
    "mamba_dt_init_floor", "num_query_groups", "sliding_window", "head_dim",
})  # fmt: skip
KIMI_READS = LATENT_READS | {
    "linear_attn_config", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim",
    "layer_types", "layer_group_size", "short_conv_kernel_size", "mla_use_nope", "group_norm_size",
    "linear_lower_bound", "linear_silu", "num_kv_heads_for_linear_attn", "linear_scale",
    "linear_rope", "linear_mode", "kda_lower_bound", "kda_safe_gate",
}  # fmt: skip
LFM_READS = frozenset({
    "conv_L_cache", "conv_bias", "conv_dim", "conv_dim_out", "conv_use_xavier_init",
    "full_attn_idxs", "layer_types", "sliding_window", "block_dim", "block_ff_dim", "head_dim",
})  # fmt: skip
GLM5_READS = KIMI_READS | {
    "index_topk_freq", "index_skip_topk_offset", "index_topk_pattern", "indexer_types",
    "index_head_dim", "index_kpool", "index_kpool_always_select_tail", "index_topk",
}  # fmt: skip

LIGHTNING_READS = frozenset({
    "attn_type_list", "layer_types", "block_size", "sliding_window", "linear_attn_alpha_factor",
    "linear_attn_beta_factor", "full_attn_alpha_factor", "full_attn_beta_factor",
})  # fmt: skip
QWEN4_READS = LINEAR_READS | {
    "indexer_n_heads", "indexer_kv_heads", "indexer_compress_ratio", "indexer_budget",
    "number_of_conv_states",
    "ple_conv_kernel_size",
}  # fmt: skip
GRIFFIN_READS = frozenset({
    "attention_window_size", "block_types", "conv1d_width", "lru_width", "head_dim",
    "sliding_window", "_block_types",
})  # fmt: skip
