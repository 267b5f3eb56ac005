"""Which models a StaticCache is made for, and what its layers are called.

Transformers 5.24 raises for some classes (measured), and was not tried with others; neither gets
an answer here.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.errors import Conflict, Unsupported
from app.engines.transformers.cache import CacheLayer, KeyValue, Run
from app.engines.transformers.model import Model

_RAISES = frozenset(
    {"cpmant", "deepseek_v4", "minimax", "prophetnet", "rwkv", "t5gemma2_decoder", "xlnet", "xlstm"}
)
_NOT_TRIED = frozenset(
    {"blt_local_encoder", "blt", "mllama_text_model", "recurrent_gemma", "reformer"}
)
_STATIC_NAMES = {
    f"{name}{kind}": f"{name}{static}"
    for name, kind, static in (
        ("MiniMaxM3VL", "SparseCacheLayer", "SparseStaticCacheLayer"),
        (
            "UnlimitedOcr",
            "DynamicReferenceSlidingWindowLayer",
            "StaticReferenceSlidingWindowLayer",
        ),
    )
}


def static_layers(model: Model, layers: list[CacheLayer], run: Run) -> list[CacheLayer]:
    """Return the layers as a static cache names them.

    Raises:
        Unsupported: for a class that makes no static cache, or was not tried with one.
        Conflict: when the run overflows it; a sliding layer may wrap around.

    """
    fields, kind = model.text, model.text.model_type
    looped = kind == "dory" and fields.text("recurrent_kv_cache_mode") == "last_loop"
    if kind in _RAISES or looped or (kind == "falcon" and fields.flag("alibi")):
        raise Unsupported(
            "{field} static: Transformers 5.24 raises for {model_type}",
            field="cache",
            model_type=kind,
        )
    if kind in _NOT_TRIED:
        raise Unsupported(
            "{field} static was not measured with {model_type}", field="cache", model_type=kind
        )
    _check_room(layers, run)
    return [replace(layer, kind=_STATIC_NAMES.get(layer.kind, layer.kind)) for layer in layers]


def _check_room(layers: list[CacheLayer], run: Run) -> None:
    length = run.static_tokens or 0
    if run.tokens <= length:
        return
    for layer in layers:
        if any(isinstance(part, KeyValue) and part.window is None for part in layer.parts):
            raise Conflict(
                "{field} is {value}, less than the {tokens} tokens of the run",
                field="max_cache_len",
                value=length,
                tokens=run.tokens,
            )
