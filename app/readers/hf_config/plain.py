"""Plain decoders: equal heads in every layer, all positions or a window of them."""

from __future__ import annotations

from app.readers.hf_config.family import Family
from app.readers.hf_config.windows import grouped_layers

FAMILIES: tuple[Family, ...] = (
    Family(
        name="llama",
        model_types=("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma"),
        layers=grouped_layers,
        source="Transformers 5.24 models/llama/modeling_llama.py",
    ),
)
