"""The widths of a config.json that decide how much memory a batch's activations take."""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.assumed_lines import MAX_WIDTH, Widths

_TEXT = ("text_config", "llm_config", "language_config")
_HIDDEN = ("hidden_size", "d_model", "n_embd", "model_dim")
_MLP = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff")
_EXPERT = ("moe_intermediate_size", "expert_ffn_hidden_size")
_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k")
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")


def read_widths(config: Mapping[str, object]) -> Widths | None:
    """Return the widths of a config's decoder, or None where it does not name them.

    A width that is absent is taken from its usual rule (four times the hidden size for the inner
    layer), which is good enough for an estimate and used for nothing else.
    """
    own = next((part for name in _TEXT if isinstance(part := config.get(name), Mapping)), config)
    hidden = _first(own, _HIDDEN)
    if hidden is None:
        return None
    heads = _first(own, _HEADS) or 1
    head_dim = _first(own, ("head_dim",)) or max(hidden // heads, 1)
    kv_heads = min(_first(own, _KV_HEADS) or heads, heads)
    mlp = _first(own, _MLP) or min(4 * hidden, MAX_WIDTH)
    experts = _first(own, _EXPERTS) or 0
    return Widths(
        hidden=hidden,
        mlp=mlp,
        attention=min((heads + 2 * kv_heads) * head_dim, MAX_WIDTH),
        vocabulary=_first(own, ("vocab_size",)) or _first(config, ("vocab_size",)) or 0,
        experts=experts,
        expert=(_first(own, _EXPERT) or mlp) if experts else 0,
    )


def _first(config: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    """Return the first of these fields that is a whole number in bounds."""
    for name in names:
        value = config.get(name)
        if type(value) is int and 0 < value <= MAX_WIDTH:
            return value
    return None
