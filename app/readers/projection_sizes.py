"""Sizes around the caches as a file itself names them, where no list of its weights can be made.

Tables and old files name the same sizes in several spellings. What is not named, or is named in a
way that does not say enough, stays None, and the cost says that it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.domain.projections import MAX_VOCABULARY, ProjectionShape
from app.domain.state import MAX_DIM, MAX_HEADS, MAX_LAYERS

_HIDDEN = ("hidden_size", "n_embd", "d_model", "hidden_dim", "hiddenDim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attentionHeads")
_INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "intermediateDim")
_VOCABULARY = ("padded_vocab_size", "vocab_size", "vocabSize")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "n_expert", "moe_num_experts")
_ACTIVATION = ("hidden_act", "activation_function", "hidden_activation")
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
# These names settle the number of MLP matrices: the first kind is used with a gate, the second
# without (OPT). Others, such as gelu, occur both ways.
_GATED = frozenset({"silu", "swish", "swiglu", "geglu"})
_PLAIN = frozenset({"relu"})


def projection_sizes(config: Mapping[str, Any]) -> ProjectionShape:
    """Return the sizes that a config or a table names, under whatever spelling.

    A width of the MLP counts only where its number of matrices is settled too and there are no
    experts, of which one width says little.
    """
    source = _text_part(config)
    experts = _integer(source, _EXPERTS, MAX_HEADS)
    matrices = _mlp_matrices(source)
    heads = _integer(source, _HEADS, MAX_HEADS)
    if heads is None and "kv_lora_rank" in source:
        # A latent row has no heads of its own; where the field is given, it is the queries' number.
        heads = _integer(source, ("num_key_value_heads",), MAX_HEADS)
    is_plain_mlp = matrices is not None and not experts
    return ProjectionShape(
        hidden_size=_integer(source, _HIDDEN, MAX_DIM),
        query_heads=heads,
        intermediate_size=_integer(source, _INTERMEDIATE, MAX_DIM) if is_plain_mlp else None,
        vocab_size=_integer(source, _VOCABULARY, MAX_VOCABULARY),
        mlp_matrices=matrices or 3,
        experts=experts or 0,
    )


def gguf_sizes(metadata: Mapping[str, Any]) -> ProjectionShape:
    """Return the sizes that a GGUF header names; it does not say how its MLP is made."""
    prefix = f"{metadata.get('general.architecture')}."
    heads = metadata.get(f"{prefix}attention.head_count")
    return ProjectionShape(
        hidden_size=_integer(metadata, (f"{prefix}embedding_length",), MAX_DIM),
        query_heads=_per_layer(heads) or _integer({"heads": heads}, ("heads",), MAX_HEADS),
        vocab_size=_integer(metadata, (f"{prefix}vocab_size",), MAX_VOCABULARY),
    )


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _TEXT_PARTS:
        part = config.get(name)
        if isinstance(part, Mapping):
            return part
    return config


def _integer(source: Mapping[str, Any], names: tuple[str, ...], most: int) -> int | None:
    for name in names:
        value = source.get(name)
        if type(value) is int and 1 <= value <= most:
            return value
    return None


def _per_layer(value: object) -> tuple[int, ...] | None:
    """Return a list with a number for each layer as it is; None for anything else."""
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_LAYERS:
        return None
    numbers = tuple(item for item in value if type(item) is int and 0 <= item <= MAX_HEADS)
    return numbers if len(numbers) == len(value) else None


def _mlp_matrices(source: Mapping[str, Any]) -> int | None:
    for name in _ACTIVATION:
        value = source.get(name)
        if isinstance(value, str):
            return 3 if value in _GATED else 2 if value in _PLAIN else None
    return None
