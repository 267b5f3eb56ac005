"""A family: which model types it reads, and the function that says what their layers keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.domain.state import Layer
from app.readers.hf_config.fields import Fields

LayersOf = Callable[[Fields], list[Layer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Model types whose layers are read by one function.

    `nested` is True for types whose own function reads the nested parts of the config (a decoder, a
    text part): else the reader descends to the language model first. `layers` returns the layers in
    order (equal ones may be the same object); `draft` the multi-token-prediction layers that the
    checkpoint carries beside them. `reads` names fields that speak of special attention and that
    this family understands although a given config may not make it ask for them: a special field
    that nobody read is refused. `defaults` and `aliases` serve types that Transformers has no class
    for; `source` says where the rule is public.
    """

    name: str
    model_types: tuple[str, ...]
    layers: LayersOf
    source: str
    draft: LayersOf | None = None
    reads: frozenset[str] = frozenset()
    nested: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
