"""The window of a sliding layer as its class sets it, and what single layers override.

Transformers 5.24 models/<type>/configuration_<type>.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.domain.errors import WrongType, shown
from app.domain.state import MAX_TOKENS
from app.readers.hf_config.fields import Fields, is_mapping

OWN = ("attention_chunk_size", "head_dim", "kv_lora_rank", "num_key_value_heads",
       "qk_nope_head_dim", "sliding_window")  # fmt: skip
_LONGEST_KEY = 8


def own_integers(fields: Fields) -> dict[int, tuple[tuple[str, int | None], ...]]:
    """Return what `per_layer_config` sets for single layers; its keys may be zero-padded.

    Raises:
        WrongType: for a table or row that is no object, or a key that is no layer's number.

    """
    table = fields.value("per_layer_config")
    if table is None:
        return {}
    found = {}
    rows = _object(table, fields, "per_layer_config")
    for key, row in rows.items():
        path = fields.at("per_layer_config", str(key)[:_LONGEST_KEY])
        if not (str(key).isascii() and str(key).isdigit() and len(str(key)) <= _LONGEST_KEY):
            raise WrongType("{field} is no layer's number", field=path)
        values = _object(row, fields, "per_layer_config", str(key))
        own = Fields(raw=values, model_type=fields.model_type, path=path)
        found[int(key)] = tuple(
            (name, own.integer_or_none(name, low=0, high=MAX_TOKENS))
            for name in OWN
            if name in values
        )
    return found


def _object(value: object, fields: Fields, name: str, *rest: str) -> Mapping[str, object]:
    if not is_mapping(value):
        raise WrongType(
            "{field} must be an object, got {value}",
            field=fields.at(name, *rest),
            value=shown(value),
        )
    return value


def window_of(fields: Fields) -> int | None:
    """Return the window of all layers as the class sets it, None for none."""
    special = WINDOWS.get(fields.model_type)
    if special is not None:
        return special(fields)
    return fields.integer_or_none("sliding_window", low=0, high=MAX_TOKENS)


# Windows that a class computes


def asked_window(fields: Fields) -> int | None:
    """Return the window of a class that drops it unless `use_sliding_window` asks for it."""
    if not fields.flag("use_sliding_window"):
        return None
    return fields.integer_or_none("sliding_window", low=0, high=MAX_TOKENS)


def _halved_when_bidirectional(fields: Fields) -> int | None:
    window = fields.integer_or_none("sliding_window", low=0, high=MAX_TOKENS)
    both = fields.value("use_bidirectional_attention")
    asks = both == "all" if fields.model_type != "gemma3_text" else bool(both)
    return window // 2 + 1 if asks and window is not None else window


def _half_of_local(fields: Fields) -> int | None:
    """A `sliding_window` in the file is set after the class has halved `local_attention`."""
    if fields.says("sliding_window"):
        return fields.integer("sliding_window", low=0, high=MAX_TOKENS)
    local = fields.integer_or_none("local_attention", low=0, high=MAX_TOKENS)
    return local // 2 if local else None


def _one_more(fields: Fields) -> int | None:
    size = fields.integer_or_none("sliding_window_size", low=0, high=MAX_TOKENS)
    if size is not None:
        return size + 1
    return fields.integer_or_none("sliding_window", low=0, high=MAX_TOKENS)


def _window_or_size(fields: Fields) -> int | None:
    window = fields.integer_or_none("sliding_window", low=0, high=MAX_TOKENS)
    if window is not None:
        return window
    return fields.integer("sliding_window_size", low=0, high=MAX_TOKENS, otherwise=512)


_WINDOW_ASKED_FOR = frozenset(
    {
        "deepseek_ocr2_vision", "qwen2", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_moe",
        "qwen2_vl_text", "qwen3", "qwen3_moe",
    }
)  # fmt: skip
WINDOWS: dict[str, Callable[[Fields], int | None]] = {
    **dict.fromkeys(_WINDOW_ASKED_FOR, asked_window),
    "diffusion_gemma_text": _halved_when_bidirectional,
    "gemma3_text": _halved_when_bidirectional,
    "gemma4_text": _halved_when_bidirectional,
    "gemma4_unified_text": _halved_when_bidirectional,
    "modernbert-decoder": _half_of_local,
    "mimo_v2_flash": _one_more,
    "dots3_note_text": _window_or_size,
}
