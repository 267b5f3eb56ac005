"""A GGUF header's numbers, layer by layer, as llama.cpp holds them once the file is loaded.

This is the engine's view: what each layer's rows measure and which cache it belongs to. What the
model itself needs is read from it by `gguf_model`. Source of the rules: src/llama-model.cpp
(`load_hparams`) and src/llama-hparams.cpp of https://github.com/ggml-org/llama.cpp, October 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.errors import Conflict, Missing, OutOfRange
from app.domain.notes import Note
from app.domain.state import MAX_DIM, MAX_HEADS
from app.readers.gguf_families import (
    Family,
    Memory,
    RecurrentLayers,
    StateRule,
    WindowRule,
    family_of,
)
from app.readers.gguf_keys import MAX_GGUF_LAYERS, Keys, keys_of

# The ratios of DeepSeek-V4's two compressed caches (src/llama-kv-cache-dsv4.cpp).
CSA_RATIO = 4
HCA_RATIO = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGeometry:
    """What the layers of a model put into an engine's caches; every tuple has one element a layer.

    `attention` and `recurrent` say which memories a layer belongs to, `owned` whether it keeps its
    own keys and values. `latent`: one vector holds keys and values (no value rows in engines that
    know it). `index_values`: the index cache keeps value rows too. `state_row_r` and `state_row_s`
    are elements of a recurrent layer's two rows for one sequence. The last `draft_layers` layers
    serve multi-token prediction only.
    """

    architecture: str
    memory: Memory
    layers: int
    draft_layers: int
    kv_heads: tuple[int, ...]
    k_dims: tuple[int, ...]
    v_dims: tuple[int, ...]
    attention: tuple[bool, ...]
    owned: tuple[bool, ...]
    recurrent: tuple[bool, ...]
    windowed: tuple[bool, ...]
    window: int = 0
    chunked: bool = False
    latent: bool = False
    latent_dim: int = 0
    rope_dim: int = 0
    index_dim: int = 0
    index_layers: tuple[bool, ...] = ()
    index_values: bool = False
    compress_ratios: tuple[int, ...] = ()
    state_row_r: int = 0
    state_row_s: int = 0
    rolls_back: bool = False
    context_tokens: int | None = None
    assumptions: tuple[Note, ...] = ()

    @property
    def trunk_layers(self) -> int:
        """Return the layers of the main context: all but those that only draft."""
        return self.layers - self.draft_layers

    def key_row(self, layer: int) -> int:
        """Return the elements of one position's key row."""
        return self.k_dims[layer] * self.kv_heads[layer]

    def value_row(self, layer: int) -> int:
        """Return the elements of one position's value row."""
        return self.v_dims[layer] * self.kv_heads[layer]


def _assumed(code: str, template: str, **params: object) -> Note:
    return Note(code, template, params)


def _draft_layers(keys: Keys, layers: int) -> int:
    drafts = keys.optional("nextn_predict_layers", 0, high=MAX_GGUF_LAYERS)
    if drafts >= layers:
        raise Conflict(
            "{field} is {drafts}, but there are only {layers} layers in all",
            field=(keys.name("nextn_predict_layers"),),
            drafts=drafts,
            layers=layers,
        )
    return drafts


def _widths(keys: Keys, heads: tuple[int, ...]) -> tuple[int, int, list[Note]]:
    """Return the width of a key and of a value head outside windows, and what was assumed."""
    if heads[0] == 0:
        return 0, 0, []
    notes = []
    embedding = keys.optional("embedding_length", 0, high=MAX_DIM)
    default = embedding // heads[0]
    if not (keys.has("attention.key_length") and keys.has("attention.value_length")):
        if not embedding:
            raise Missing(
                "the header has neither {field} nor a width of its heads",
                field=(keys.name("embedding_length"),),
            )
        notes.append(
            _assumed(
                "head_width_from_embedding",
                "heads are embedding_length / head_count = {width} wide where the header names"
                " no width",
                width=default,
            )
        )
    key = keys.optional("attention.key_length", default, high=MAX_DIM)
    return key, keys.optional("attention.value_length", default, high=MAX_DIM), notes


def _window(
    keys: Keys, rule: WindowRule | None, layers: int, trunk: int
) -> tuple[int, tuple[bool, ...], list[Note]]:
    """Return the window (0 for none), the layers it holds for, and what was assumed."""
    nowhere: tuple[int, tuple[bool, ...], list[Note]] = (0, (False,) * layers, [])
    if rule is None:
        if keys.optional("attention.sliding_window", 0):
            note = _assumed(
                "window_ignored",
                "{key} is ignored: llama.cpp gives every layer of {architecture} the full context",
                key=keys.name("attention.sliding_window"),
                architecture=keys.architecture,
            )
            return 0, nowhere[1], [note]
        return nowhere
    if rule.only_with_layers is not None and layers != rule.only_with_layers:
        return nowhere
    notes: list[Note] = []
    if keys.has("attention.sliding_window"):
        window = keys.integer("attention.sliding_window")
        if window and rule.fixed_window is not None:
            window = rule.fixed_window
    elif rule.default_window is not None:
        window = rule.default_window
        notes.append(
            _assumed(
                "window_default",
                "a window of {window}, the default of {architecture}: the header names none",
                window=window,
                architecture=keys.architecture,
            )
        )
    elif rule.optional:
        return nowhere
    else:
        window = keys.integer("attention.sliding_window")
    if window == 0:
        return nowhere
    slides, more = _pattern(keys, rule, layers, trunk)
    return window, slides, notes + more


def _pattern(
    keys: Keys, rule: WindowRule, layers: int, trunk: int
) -> tuple[tuple[bool, ...], list[Note]]:
    """Return which layers slide: the header's list or period, else the architecture's period."""
    suffix = "attention.sliding_window_pattern"
    if keys.listed(suffix):
        row = keys.row(suffix, (layers, trunk), high=1)
        return tuple(bool(x) for x in row) + (False,) * (layers - len(row)), []
    period, notes = rule.period, []
    if keys.has(suffix) or period is None:
        period = keys.integer(suffix, high=MAX_GGUF_LAYERS)
    elif period:
        notes.append(
            _assumed(
                "window_pattern_default",
                "one layer in {period} is full ({which} of each {period}), the default of"
                " {architecture}: the header names no pattern",
                period=period,
                which=Note("", "the first") if rule.full_first else Note("", "the last"),
                architecture=keys.architecture,
            )
        )
    if period == 0:
        return (True,) * layers, notes
    if rule.full_first:
        return tuple(layer % period != 0 for layer in range(layers)), notes
    return tuple(layer % period < period - 1 for layer in range(layers)), notes


def _recurrent(
    keys: Keys, family: Family, kv_heads: tuple[int, ...], trunk: int
) -> tuple[tuple[bool, ...], tuple[bool, ...], list[Note]]:
    """Return which layers are recurrent and which have attention."""
    layers = len(kv_heads)
    rule = family.recurrent
    yes, no = (True,) * layers, (False,) * layers
    if rule is RecurrentLayers.NONE:
        return no, no if family.memory is Memory.NONE else yes, []
    if rule is RecurrentLayers.ALL:
        return yes, no, []
    if rule is RecurrentLayers.BESIDE_ATTENTION:
        return yes, yes, []
    if rule is RecurrentLayers.INTERVAL:
        return _interval(keys, layers, trunk)
    bare = tuple(heads == 0 for heads in kv_heads)
    if rule is RecurrentLayers.NO_KV_HEADS:
        return bare, tuple(not x for x in bare), []
    forward = keys.per_layer("feed_forward_length", layers, trunk, (0,) * layers, high=MAX_DIM)
    silent = tuple(width == 0 for width in forward)
    recurrent = tuple(b and s for b, s in zip(bare, silent, strict=True))
    return recurrent, tuple(not b and s for b, s in zip(bare, silent, strict=True)), []


def _interval(
    keys: Keys, layers: int, trunk: int
) -> tuple[tuple[bool, ...], tuple[bool, ...], list[Note]]:
    """Return the layers of a model where every n-th one has attention."""
    if keys.listed("attention.recurrent_layers"):
        row = keys.row("attention.recurrent_layers", (layers, trunk), high=1)
        flags = tuple(bool(x) for x in row) + (False,) * (layers - len(row))
        return flags, tuple(not x for x in flags), []
    notes = []
    if not keys.has("full_attention_interval"):
        notes.append(
            _assumed(
                "attention_interval_default",
                "every 4th layer has attention: the header names no full_attention_interval",
            )
        )
    every = keys.optional("full_attention_interval", 4, high=MAX_GGUF_LAYERS)
    if every < 1:
        raise OutOfRange(
            "{field} must be at least 1, got {value}",
            field=(keys.name("full_attention_interval"),),
            value=every,
        )
    flags = tuple(layer < trunk and (layer + 1) % every != 0 for layer in range(layers))
    return flags, tuple(not x for x in flags), notes


def _state_rows(
    keys: Keys, rule: StateRule | None, heads: tuple[int, ...]
) -> tuple[int, int, list[Note]]:
    """Return the elements of the two rows that a recurrent layer keeps for one sequence."""
    if rule is None:
        return 0, 0, []
    if rule is StateRule.RWKV:
        notes = []
        if not keys.has("token_shift_count"):
            notes.append(
                _assumed(
                    "token_shift_default",
                    "two shifted tokens a layer, llama.cpp's default",
                )
            )
        width = keys.integer("embedding_length", low=1, high=MAX_DIM)
        head = keys.integer("wkv.head_size", low=1, high=MAX_DIM)
        return (
            keys.optional("token_shift_count", 2, high=MAX_DIM) * width,
            width * head,
            notes,
        )
    if rule is StateRule.SHORT_CONVOLUTION:
        width = keys.integer("embedding_length", low=1, high=MAX_DIM)
        return (
            width * (keys.integer("shortconv.l_cache", low=1, high=MAX_DIM) - 1),
            0,
            [],
        )
    kernel = keys.integer("ssm.conv_kernel", high=MAX_DIM)
    tail = max(kernel - 1, 0)
    if rule is StateRule.KDA:
        head = keys.integer("kda.head_dim", low=1, high=MAX_DIM)
        return 3 * (tail if kernel else 3) * heads[0] * head, head * head * heads[0], []
    inner = keys.integer("ssm.inner_size", high=MAX_DIM)
    state = keys.integer("ssm.state_size", high=MAX_DIM)
    groups = keys.optional("ssm.group_count", 0, high=MAX_DIM)
    return tail * (inner + 2 * groups * state), state * inner, []


def _index(
    keys: Keys, family: Family, layers: int, trunk: int, windowed: tuple[bool, ...]
) -> tuple[int, tuple[bool, ...], list[Note]]:
    """Return the width of an index key and the layers that keep one."""
    nowhere: tuple[int, tuple[bool, ...], list[Note]] = (0, (False,) * layers, [])
    if family.memory not in {Memory.DSA, Memory.MSA, Memory.DSV4}:
        return nowhere
    if family.memory is Memory.DSA and not keys.has("attention.indexer.key_length"):
        return nowhere
    width = keys.integer("attention.indexer.key_length", low=1, high=MAX_DIM)
    if family.memory is Memory.DSV4:
        return width, (False,) * layers, []
    if family.memory is Memory.MSA:
        first = keys.optional("leading_dense_block_count", 0, high=MAX_GGUF_LAYERS)
        return width, tuple(first <= layer < trunk for layer in range(layers)), []
    notes: list[Note] = []
    if keys.listed("attention.indexer.types"):
        row = keys.row("attention.indexer.types", (layers, trunk), high=MAX_GGUF_LAYERS)
        owns = tuple(bool(x) for x in row) + (False,) * (layers - len(row))
    else:
        owns = (True,) * layers
        if family.lists_indexers:
            notes = [_assumed("indexer_everywhere",
                              "every layer keeps index keys: the header lists none")]  # fmt: skip
    flags = tuple(owns[i] and i < trunk and not windowed[i] for i in range(layers))
    return width, flags, notes


def _owned(keys: Keys, family: Family, layers: int) -> tuple[bool, ...]:
    """Return which layers own a cache; the rest read that of an earlier layer."""
    first_shared = layers
    if family.first_shared_layer is not None:
        first_shared = family.first_shared_layer
    if family.shares_by_key:
        shared = keys.optional("attention.shared_kv_layers", 0, high=MAX_GGUF_LAYERS)
        if shared > layers - 2 and shared:
            raise OutOfRange(
                "{field} must leave two layers that own a cache, got {value} of {layers}",
                field=(keys.name("attention.shared_kv_layers"),),
                value=shared,
                layers=layers,
            )
        first_shared = layers - shared
    return tuple(layer < first_shared for layer in range(layers))


def _ratios(keys: Keys, family: Family, layers: int, trunk: int) -> tuple[int, ...]:
    if family.memory is not Memory.DSV4:
        return (0,) * layers
    row = keys.row("attention.compress_ratios", (layers, trunk), high=2**16)
    return row + (0,) * (layers - len(row))


def read_geometry(values: Mapping[str, object]) -> CacheGeometry:
    """Return a header's geometry as llama.cpp loads it.

    Raises:
        Missing, WrongType, OutOfRange, Conflict: naming the key that is absent or wrong.
        Unsupported: for an architecture whose memory is not known.

    """
    keys = keys_of(values)
    family = family_of(keys.architecture)
    layers = keys.integer("block_count", low=1, high=MAX_GGUF_LAYERS)
    drafts = _draft_layers(keys, layers)
    trunk = layers - drafts
    needs_heads = family.memory not in {Memory.RECURRENT, Memory.NONE}
    if needs_heads and not keys.has("attention.head_count"):
        keys.integer("attention.head_count")
    heads = keys.per_layer("attention.head_count", layers, trunk, (0,) * layers, high=MAX_HEADS)
    kv_heads = keys.per_layer("attention.head_count_kv", layers, trunk, heads, high=MAX_HEADS)
    key, value, width_notes = _widths(keys, heads)
    window, windowed, window_notes = _window(keys, family.window, layers, trunk)
    key_swa = keys.optional("attention.key_length_swa", key, high=MAX_DIM)
    value_swa = keys.optional("attention.value_length_swa", value, high=MAX_DIM)
    recurrent, attention, recurrent_notes = _recurrent(keys, family, kv_heads, trunk)
    row_r, row_s, state_notes = _state_rows(keys, family.state, heads)
    index_dim, index_layers, index_notes = _index(keys, family, layers, trunk, windowed)
    mla_key = keys.optional("attention.key_length_mla", 0, high=MAX_DIM)
    mla_value = keys.optional("attention.value_length_mla", 0, high=MAX_DIM)
    latent = family.memory is Memory.DSV4 or (family.latent and mla_key > 0 and mla_value > 0)
    return CacheGeometry(
        architecture=keys.architecture,
        memory=family.memory,
        layers=layers,
        draft_layers=drafts,
        kv_heads=kv_heads,
        k_dims=tuple(key_swa if slides else key for slides in windowed),
        v_dims=tuple(value_swa if slides else value for slides in windowed),
        attention=attention,
        owned=_owned(keys, family, layers),
        recurrent=recurrent,
        windowed=windowed,
        window=window,
        chunked=bool(window) and family.window is not None and family.window.chunked,
        latent=latent,
        latent_dim=keys.optional("attention.kv_lora_rank", 0, high=MAX_DIM),
        rope_dim=keys.optional("rope.dimension_count", 0, high=MAX_DIM),
        index_dim=index_dim,
        index_layers=index_layers,
        index_values=family.memory is Memory.MSA,
        compress_ratios=_ratios(keys, family, layers, trunk),
        state_row_r=row_r,
        state_row_s=row_s,
        rolls_back=family.rolls_back,
        context_tokens=keys.optional("context_length", 0) or None,
        assumptions=(
            *width_notes,
            *window_notes,
            *recurrent_notes,
            *state_notes,
            *index_notes,
        ),
    )
