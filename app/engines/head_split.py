"""How tensor ranks divide attention heads: the rule that vLLM, SGLang and TensorRT-LLM share.

Each asserts it while it builds the layers: query heads divide by the ranks, and key-value heads
divide by them or are copied to a whole number of ranks each. vLLM 0.33.0 config/model.py and
distributed/utils.py `divide`; `LlamaAttention` in python/sglang/srt/models/llama.py of
https://github.com/sgl-project/sglang; `Attention` in tensorrt_llm/_torch/modules/attention.py and
`duplicate_kv_weight` in models/modeling_utils.py of https://github.com/NVIDIA/TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.domain.errors import Conflict
from app.domain.state import (
    MAX_HEADS,
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    ModelState,
    SlidingWindow,
)

# Parts in which a composite config holds its language model.
_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
_MAX_NESTING = 4
_QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")


def language_model_of(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the part of a config that describes its language model; the config itself if none."""
    text = config
    for _ in range(_MAX_NESTING):
        inner = next((part for name in _PARTS if isinstance(part := text.get(name), Mapping)), None)
        if inner is None:
            break
        text = inner
    return text


def query_heads_of(text: Mapping[str, object]) -> int | None:
    """Return the query heads that a language model's config names, or None."""
    for name in _QUERY_HEADS:
        value = text.get(name)
        if type(value) is int and 0 < value <= MAX_HEADS:
            return value
    return None


def kv_heads_per_rank(
    total_kv_heads: int, ranks: int, *, field: str = "tensor_parallel_size"
) -> int:
    """Return the heads that one rank keeps: its share, or one copy where ranks outnumber heads.

    Raises:
        Conflict: where neither divides the other; the engines' layers refuse that.

    """
    if total_kv_heads % ranks and ranks % total_kv_heads:
        raise Conflict(
            "{field}: {heads} key-value heads can neither be split nor copied evenly over {ranks}"
            " tensor ranks",
            field=field,
            heads=total_kv_heads,
            ranks=ranks,
        )
    return max(1, total_kv_heads // ranks)


def check_query_heads(total_heads: int, ranks: int, *, field: str = "tensor_parallel_size") -> None:
    """Raise Conflict unless the attention heads divide by the tensor ranks."""
    if total_heads % ranks:
        raise Conflict(
            "{field}: {heads} attention heads do not divide by {ranks} tensor ranks",
            field=field,
            heads=total_heads,
            ranks=ranks,
        )


def check_heads(
    config: Mapping[str, object] | None, state: ModelState, ranks: int, *, field: str
) -> None:
    """Raise Conflict where a model's heads do not divide over the ranks.

    Query heads are checked where the config names them. A latent has no heads to divide.
    """
    heads = query_heads_of(language_model_of(config or {}))
    if heads is not None:
        check_query_heads(heads, ranks, field=field)
    for run in state.runs:
        for part in run.layer.states:
            if isinstance(part, FullAttention | SlidingWindow | ChunkedAttention | CrossAttention):
                kv_heads_per_rank(part.kv_heads, ranks, field=field)
