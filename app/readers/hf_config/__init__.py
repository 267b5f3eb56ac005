"""Read a Hugging Face config.json: what each layer of the model keeps, and all that was assumed.

    reading = read_config(json.loads(text))
    reading.state.layers, reading.assumptions

The reading says what the MODEL needs; what an engine keeps beyond that is the engine's.

How it goes (reader.py): the model type, or the class where it is certain, or a table of sizes
(tables.py); then the language model inside a wrapper (wrappers.py, defaults.json); then the family
of its type (registry.py) says what each layer keeps; then whatever speaks of special attention and
was read by nobody (specials.py) is refused.

To register a family: write a function `layers(fields: Fields) -> list[Layer]`, put it in a
`Family(name=…, model_types=(…,), layers=…, source=…)` in a module's `FAMILIES`, and name the
module in registry.py. fields.py has the typed access (`fields.integer("conv_kernel")`,
`fields.flag(…)`, `fields.words("layer_types")`, `fields.part("decoder")`), attention.py the heads
(`grouped(fields)`), windows.py which layers slide (`windowed(every(6))`). An absent field takes its
class's default, which is noted as an assumption; a type without a class brings its own in
`Family.defaults`. Where a field is idle, `fields.seen(…)` or `Family.reads` says that it was
understood. Types that read nested configs themselves set `Family.nested`. `fields.encoder_tokens`
is what the caller said, or None.
"""

from __future__ import annotations

from app.readers.hf_config.reader import read_config

__all__ = ["read_config"]
