"""The window of a sliding layer as its class sets it, and what single layers override.

Transformers 5.24 models/<type>/configuration_<type>.py.
"""

from __future__ import annotations

from collections.abc import Callable

from app.domain.errors import WrongType, shown
from app.domain.state import MAX_TOKENS
from app.readers.hf_config.fields import Fields, is_mapping


def per_layer(fields: Fields, index: int) -> dict[str, object]:
    """Return what `per_layer_config` overrides in that layer; its keys may be zero-padded."""
    table = fields.value("per_layer_config")
    if table is None:
        return {}
    if not is_mapping(table):
        raise WrongType("{field} must be an object, got {value}",
                        field=fields.at("per_layer_config"), value=shown(table))  # fmt: skip
    width = max((len(key) for key in table if isinstance(key, str)), default=1)
    row = table.get(str(index), table.get(str(index).zfill(min(width, 8))))
    return dict(row) if is_mapping(row) else {}


def layer_integer(fields: Fields, name: str, index: int) -> int | None:
    """Return an integer of one layer: its own override, else the model's; None for none."""
    row = per_layer(fields, index)
    if name in row:
        own = Fields(raw=row, model_type=fields.model_type,
                     path=fields.at("per_layer_config", index))  # fmt: skip
        return own.integer_or_none(name, low=0, high=MAX_TOKENS)
    if name == "sliding_window" and fields.model_type in _WINDOW_ASKED_FOR:
        return asked_window(fields)
    return fields.integer_or_none(name, low=0, high=MAX_TOKENS)


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
