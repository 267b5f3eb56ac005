"""Read a Hugging Face config.json: what each layer of the model keeps, and all that was assumed.

    reading = read_config(json.loads(text))
    reading.state.layers, reading.assumptions

The reading says what the MODEL needs; what an engine keeps beyond that is the engine's.

Registering a family: write a function `layers(fields: Fields) -> list[Layer]` (fields.py has the
typed access: `fields.integer("conv_kernel")`, `fields.flag(...)`, `fields.words("layer_types")`,
`fields.part("decoder")`; attention.py `grouped(fields)` gives KV heads and widths), put it in a
`Family(name=…, model_types=(…,), layers=…, source=…)` in the module's `FAMILIES`, and name the
module in registry.py. Absent fields take the class's default from defaults.json, which is noted as
an assumption; a type that has no row there brings its own in `Family.defaults`. A field whose name
speaks of special attention (specials.py) must have been asked for by the function, or be named in
`Family.reads`, or the config is refused. `fields.encoder_tokens` is what the caller said, or None.
"""

from __future__ import annotations

from app.readers.hf_config.reader import read_config

__all__ = ["read_config"]
