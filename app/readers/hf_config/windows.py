"""Which layers keep only a window, by every spelling that configs use.

`layer_types` decides where the file has it. Otherwise the type's own rule does: a period, the
layers from `max_window_layers` on, a string such as "LLLG"; and for a type with none, an integer
`sliding_window` makes every layer slide (Transformers 5.24 cache_utils.py, DynamicCache; the same
in vLLM 0.33.0 config/model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.domain.errors import Missing, Unsupported, shown
from app.domain.state import (
    MAX_LAYERS,
    MAX_TOKENS,
    ChunkedAttention,
    Layer,
    SlidingWindow,
    State,
)
from app.readers.hf_config.attention import Heads, HeadShape, grouped
from app.readers.hf_config.family import LayersOf
from app.readers.hf_config.fields import Fields

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"

Pattern = Callable[[Fields, int, int | None], list[str]]
Window = Callable[[Fields], int | None]

# "attention" is what older files say for full attention (Transformers 5.24, the remapping of
# legacy layer types in configuration_utils.py).
WORDS: Mapping[str, str] = {FULL: FULL, "attention": FULL, SLIDING: SLIDING, CHUNKED: CHUNKED}


# The size of the window


def window_size(fields: Fields) -> int | None:
    """Return the window, or None: null, or switched off by `use_sliding_window`."""
    if not fields.flag("use_sliding_window", otherwise=True):
        fields.seen("sliding_window", "max_window_layers")
        return None
    return fields.integer_or_none("sliding_window", high=MAX_TOKENS)


def window_halved_if(word: str) -> Window:
    """Return the rule of models whose window spans both sides where attention is bidirectional.

    A side then sees half of it, and itself (Transformers 5.24 models/gemma3).
    """

    def size(fields: Fields) -> int | None:
        window = window_size(fields)
        value = fields.value("use_bidirectional_attention")
        both = value is True if word == "true" else value == word
        return window // 2 + 1 if both and window is not None else window

    return size


# Which layers slide when the file has no `layer_types`


def throughout(fields: Fields, layers: int, window: int | None) -> list[str]:
    """Return the plain rule: a window, if there is one, holds in every layer.

    A stray `attention_chunk_size` is not read here, and so is refused: Transformers' cache takes it
    for a window, the model's own attention for nothing.
    """
    if window is not None:
        if "sliding_window" not in fields.defaults:
            fields.guess("layer_types")
            fields.assume(
                "window_everywhere",
                "{model_type} has no window of its own; {field} is taken to hold in every layer",
                model_type=fields.model_type,
                field="sliding_window",
            )
        return [SLIDING] * layers
    return [FULL] * layers


def nowhere(fields: Fields, layers: int, window: int | None) -> list[str]:
    """Return full attention in every layer, as classes do that slide only by `layer_types`."""
    if window is not None and fields.says("sliding_window"):
        _assume_pattern(
            fields,
            "the file does not say which layers have a window; {model_type} then has full "
            "attention in all of them",
        )
    return [FULL] * layers


def every(period: int, *names: str, last_is_full: bool = False) -> Pattern:
    """Return the rule: full attention in each `period`-th layer, and windows between.

    The file may give the period under one of `names`, or spell it out in letters (L local, G
    global), repeated.
    """

    def kinds(fields: Fields, layers: int, window: int | None) -> list[str]:  # noqa: ARG001
        value = fields.value(*names) if names else None
        if isinstance(value, str):
            found = _lettered(fields, names, value, layers)
        else:
            given = fields.integer_or_none(*names, high=MAX_LAYERS) if value is not None else None
            step = given or period
            found = [SLIDING if (index + 1) % step else FULL for index in range(layers)]
            if given is None:
                _assume_pattern(
                    fields,
                    "the file does not say which layers have a window; {model_type} has full "
                    "attention in one of every {period}",
                    period=period,
                )
        if last_is_full:
            found[-1] = FULL
        return found

    return kinds


def every_from(first: int, period: int, *names: str) -> Pattern:
    """Return the rule: full attention in layers first, first + period, … counted from 0."""

    def kinds(fields: Fields, layers: int, window: int | None) -> list[str]:  # noqa: ARG001
        given = fields.integer_or_none(*names, high=MAX_LAYERS) if names else None
        step = given or period
        if given is None:
            _assume_pattern(
                fields,
                "the file does not say which layers have a window; {model_type} has full attention "
                "in layer {first}, and in one of every {period} from there",
                first=first,
                period=period,
            )
        return [FULL if index % step == first % step else SLIDING for index in range(layers)]

    return kinds


def every_backwards(period: int) -> Pattern:
    """Return the rule: full attention in the last layer and each `period`-th before it."""

    def kinds(fields: Fields, layers: int, window: int | None) -> list[str]:  # noqa: ARG001
        _assume_pattern(
            fields,
            "the file does not say which layers have a window; {model_type} has full attention in "
            "the last layer, and in one of every {period} back from it",
            period=period,
        )
        return [SLIDING if (layers - 1 - index) % period else FULL for index in range(layers)]

    return kinds


def unless_no_window(pattern: Pattern) -> Pattern:
    """Return the same rule, but full attention throughout where the window is null."""

    def kinds(fields: Fields, layers: int, window: int | None) -> list[str]:
        if window is None:
            fields.seen("sliding_window_pattern")
            return [FULL] * layers
        return pattern(fields, layers, window)

    return kinds


def from_max_window_layers(fields: Fields, layers: int, window: int | None) -> list[str]:
    """Return the rule of Qwen2 and Qwen3: windows from layer `max_window_layers` on."""
    if window is None:
        fields.seen("max_window_layers")
        return [FULL] * layers
    first = min(fields.integer("max_window_layers", low=0), layers)
    return [FULL] * first + [SLIDING] * (layers - first)


def even_below_max_window_layers(fields: Fields, layers: int, window: int | None) -> list[str]:
    """Return the rule of Qwen2-MoE: windows in even layers below `max_window_layers`."""
    if window is None:
        fields.seen("max_window_layers")
        return [FULL] * layers
    end = fields.integer("max_window_layers", low=0)
    return [SLIDING if index % 2 == 0 and index < end else FULL for index in range(layers)]


def without_rope(fields: Fields, layers: int, window: int | None) -> list[str]:
    """Return the rule of SmolLM3: windows where no rotary position is applied."""
    if window is None:
        return [FULL] * layers
    rotates = rotary_layers(fields, layers)
    return [FULL if has_rope else SLIDING for has_rope in rotates]


def chunks_with_rope(fields: Fields, layers: int, window: int | None) -> list[str]:  # noqa: ARG001
    """Return the rule of Llama 4: chunks where a rotary position is applied."""
    if fields.integer_or_none("attention_chunk_size", high=MAX_TOKENS) is None:
        return [FULL] * layers
    return [CHUNKED if has_rope else FULL for has_rope in rotary_layers(fields, layers)]


def rotary_layers(fields: Fields, layers: int, period: int = 4) -> list[int]:
    """Return 1 for each layer with a rotary position: `no_rope_layers`, else three of four.

    The name is the wrong way round in the files: 1 means that the layer does rotate.
    """
    given = fields.integers("no_rope_layers", high=1)
    if given:
        return fields.integers("no_rope_layers", length=layers, high=1) or []
    step = fields.integer("no_rope_layer_interval", high=MAX_LAYERS, otherwise=period)
    return [int((index + 1) % step != 0) for index in range(layers)]


def _lettered(fields: Fields, names: tuple[str, ...], letters: str, layers: int) -> list[str]:
    kinds = {"L": SLIDING, "G": FULL}
    if not letters or len(letters) > MAX_LAYERS or any(letter not in kinds for letter in letters):
        raise Unsupported(
            "{field} must be letters L (local) and G (global), got {value}",
            field=fields.at(fields.key(*names) or names[0]),
            value=shown(letters),
        )
    return [kinds[letters[index % len(letters)]] for index in range(layers)]


def _assume_pattern(fields: Fields, template: str, **params: object) -> None:
    fields.guess("layer_types")
    fields.assume("layer_pattern", template, model_type=fields.model_type, **params)


# Layers


def layer_kinds(
    fields: Fields,
    layers: int,
    pattern: Pattern,
    window: int | None,
    words: Mapping[str, str] = WORDS,
) -> list[str]:
    """Return the kind of each layer: by `layer_types`, else by the type's own rule.

    Raises:
        Unsupported: for a kind of layer that the family does not have.

    """
    given = fields.words("layer_types", length=layers)
    if given is None:
        return pattern(fields, layers, window)
    # Where every layer is named, the spellings that would otherwise decide are idle.
    fields.seen(
        "sliding_window_pattern", "_sliding_window_pattern", "max_window_layers", "sliding_window",
        "global_attn_every_n_layers", "prefix_dense_sliding_window_pattern",
    )  # fmt: skip
    for index, name in enumerate(given):
        if name not in words:
            raise Unsupported(
                "{field} is {value}, a kind of layer that {model_type} is not known to have",
                field=fields.at("layer_types", index),
                value=shown(name),
                model_type=fields.model_type,
            )
    return [words[name] for name in given]


def windowed(
    pattern: Pattern = throughout,
    *,
    window: Window = window_size,
    heads: Heads = grouped,
    words: Mapping[str, str] = WORDS,
) -> LayersOf:
    """Return the reader of a decoder with equal heads in every layer, some of them windowed."""

    def layers_of(fields: Fields) -> list[Layer]:
        count = fields.layers()
        width = window(fields)
        kinds = layer_kinds(fields, count, pattern, width, words)
        shape = heads(fields)
        made = {kind: Layer(states=(state_of(fields, kind, shape, width),)) for kind in set(kinds)}
        return [made[kind] for kind in kinds]

    return layers_of


def state_of(fields: Fields, kind: str, shape: HeadShape, window: int | None) -> State:
    """Return what a layer of that kind keeps."""
    if kind == FULL:
        return shape.full()
    if kind == CHUNKED:
        return chunked(shape, fields.integer("attention_chunk_size", high=MAX_TOKENS))
    if window is None:
        raise Missing(
            "{field} is missing or null, and layer_types names layers that slide",
            field=fields.at("sliding_window"),
        )
    return sliding(shape, window)


def sliding(shape: HeadShape, window: int) -> SlidingWindow:
    """Return the state that keeps what a window sees."""
    return SlidingWindow(
        kv_heads=shape.kv_heads, k_dim=shape.k_dim, v_dim=shape.v_dim, window=window
    )


def chunked(shape: HeadShape, chunk: int) -> ChunkedAttention:
    """Return the state that keeps the positions of the current chunk."""
    return ChunkedAttention(
        kv_heads=shape.kv_heads, k_dim=shape.k_dim, v_dim=shape.v_dim, chunk=chunk
    )
