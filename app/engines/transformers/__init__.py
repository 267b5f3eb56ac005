"""What Transformers 5.24 allocates: DynamicCache and StaticCache, tensor by tensor.

    answer = plan(config, {"cache": "dynamic", "batch": 2, "prompt_tokens": 13, "decode_steps": 3})
    answer.cache_bytes, answer.layers[0].tensors

The class that a config.json's `model_type` names decides the cache, so this follows the classes,
with what they assume when the file leaves a field out; `overhead` compares with what the reader
says that the model needs.
"""

from __future__ import annotations

from app.engines.transformers.plan import PlannedLayer, TransformersPlan, plan

__all__ = ["PlannedLayer", "TransformersPlan", "plan"]
