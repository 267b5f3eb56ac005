"""Decoders with a cache of another shape than one layer after another.

Each follows its own file of Transformers 5.24 (models/<type>/modeling_<type>.py) and is measured:
tests/data/transformers_caches.json.gz.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.errors import Conflict, OutOfRange, Unsupported, shown
from app.domain.state import MAX_HEADS, MAX_LAYERS, MAX_TOKENS
from app.engines.transformers.attention import attention_parts
from app.engines.transformers.cache import CacheLayer, Part, StateRow, States
from app.engines.transformers.decoder import NAMES, as_layers, decoder
from app.engines.transformers.kinds import DUMMY, FULL, LINEAR, LayerKind
from app.engines.transformers.layer_types import layer_kinds
from app.engines.transformers.model import Model
from app.engines.transformers.odd import Counter, HiddenStates, ReformerStates, Stacked
from app.engines.transformers.states import module_states
from app.readers.hf_config.fields import Fields, is_mapping
from app.readers.hf_config.recurrent_shapes import shape_of

# Stacks that run more or fewer cache layers than they have layers


def longcat(model: Model) -> list[CacheLayer]:
    """Two attentions a layer; `num_hidden_layers` counts them, `num_layers` the layers."""
    fields = model.text
    if fields.says("num_hidden_layers"):
        layers = fields.integer("num_hidden_layers", high=MAX_LAYERS) // 2
    else:
        layers = fields.integer("num_layers", high=MAX_LAYERS // 2)
    return decoder(fields, 2 * layers)


def nemotron_h(model: Model) -> list[CacheLayer]:
    """The pattern decides how many layers there are, whatever `num_hidden_layers` says."""
    fields = model.text
    words = fields.words("layer_types", "layers_block_type")
    if words is None:
        pattern = fields.text("hybrid_override_pattern")
        if pattern is None:
            words = ["linear_attention", "moe", "full_attention", "mlp"]
            fields.assume_default("layers_block_type", ", ".join(words))
        else:
            words = _lettered(fields, pattern)
    if len(words) > MAX_LAYERS:
        raise OutOfRange("{field} must be at most {high}, got {value}",
                         field=fields.at("layers_block_type"), high=MAX_LAYERS,
                         value=len(words))  # fmt: skip
    kinds = {"linear_attention": LINEAR, "mamba": LINEAR, "full_attention": FULL,
             "attention": FULL, "moe": DUMMY, "mlp": DUMMY}  # fmt: skip
    for index, word in enumerate(words):
        if word not in kinds:
            raise Unsupported(
                "{field} {value} has no cache layer in Transformers 5.24",
                field=fields.at("layers_block_type", index),
                value=shown(word),
            )
    return as_layers(fields, [LayerKind(kind=kinds[word]) for word in words])


def _lettered(fields: Fields, pattern: str) -> list[str]:
    letters = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
    for index, letter in enumerate(pattern[: MAX_LAYERS + 1]):
        if letter not in letters:
            raise Unsupported("{field} may hold M, E, * and -, got {value}",
                              field=fields.at("hybrid_override_pattern", index),
                              value=letter)  # fmt: skip
    return [letters[letter] for letter in pattern[: MAX_LAYERS + 1]]


def hrm(model: Model) -> list[CacheLayer]:
    """A stack run for every low cycle and once more, in every high cycle, each with own entries."""
    fields = model.text
    cycles = fields.integer("H_cycles", high=MAX_LAYERS) * (
        fields.integer("L_cycles", high=MAX_LAYERS) + 1
    )
    stack = fields.integer_or_none("num_layers_per_stack", high=MAX_LAYERS) or fields.layers()
    if stack * cycles > MAX_LAYERS:
        raise OutOfRange("{field} must be at most {high}, got {value}", field=fields.at("H_cycles"),
                         high=MAX_LAYERS, value=stack * cycles)  # fmt: skip
    return decoder(fields, stack * cycles)


def _repeat(layers: list[CacheLayer], start: int, end: int, times: int,
            fields: Fields, name: str) -> list[CacheLayer]:  # fmt: skip
    """Return the layers with copies of start..end appended for each further pass."""
    if not 0 <= start <= end <= len(layers):
        raise Conflict("{field}: layers {start} to {end} are looped in a model of {layers}",
                       field=fields.at(name), start=start, end=end, layers=len(layers))  # fmt: skip
    if len(layers) + (end - start) * times > MAX_LAYERS:
        raise OutOfRange("{field} must be at most {high}, got {value}", field=fields.at(name),
                         high=MAX_LAYERS, value=len(layers) + (end - start) * times)  # fmt: skip
    found = list(layers)
    for _ in range(times):
        for layer in layers[start:end]:
            found.append(CacheLayer(index=len(found), kind=layer.kind, parts=layer.parts))
    return found


def dory(model: Model) -> list[CacheLayer]:
    """Recurrent layers write one set of entries a loop, unless only the last loop's are kept.

    A config.json lists attention and MLP as layers of their own; the class halves it.
    """
    fields = model.text
    words = fields.words("layer_types")
    layers, inputs = fields.layers(), fields.integer("n_input_layers", low=0, high=MAX_LAYERS)
    outputs = fields.integer("n_output_layers", low=0, high=MAX_LAYERS)
    middle = fields.integer_or_none("n_recurrent_layers", low=0, high=MAX_LAYERS)
    if words is not None and "mlp" in words:
        layers, inputs, outputs = layers // 2, inputs // 2, outputs // 2
        middle = None if middle is None else middle // 2
        fields = replace(fields, raw={**fields.raw, "layer_types": words[::2]})
    if middle is None:
        middle = layers - inputs - outputs
    base = decoder(fields, layers)
    if fields.text("recurrent_kv_cache_mode") == "last_loop":
        return base
    loops = fields.integer("n_recurrent_loops", high=MAX_LAYERS)
    return _repeat(base, inputs, inputs + middle, loops - 1, fields, "n_recurrent_layers")


def inkling_loop(model: Model) -> list[CacheLayer]:
    """The middle layers run `loop_num_passes` times, each pass with entries of its own."""
    fields = model.text
    nested = fields.value("loop_config")
    start = fields.integer("loop_layer_index_start", low=0, high=MAX_LAYERS)
    end = fields.integer("loop_layer_index_end", low=0, high=MAX_LAYERS)
    passes = fields.integer("loop_num_passes", high=MAX_LAYERS)
    if is_mapping(nested):
        own = Fields(raw=nested, model_type=fields.model_type, path=fields.at("loop_config"))
        start = own.integer("core_start", low=0, high=MAX_LAYERS, otherwise=start)
        end = own.integer("core_end", low=0, high=MAX_LAYERS, otherwise=end)
        passes = own.integer("num_passes", high=MAX_LAYERS, otherwise=passes)
    return _repeat(decoder(fields), start, end, passes - 1, fields, "loop_num_passes")


def minimax(model: Model) -> list[CacheLayer]:
    """Its cache is a list that grows with the layers that use it, and a list of linear states."""
    fields = model.text
    kinds = layer_kinds(fields, fields.layers())
    attention = [index for index, kind in enumerate(kinds) if kind.kind != LINEAR]
    found = []
    for index in range(max(attention, default=-1) + 1):
        parts: tuple[Part, ...] = ()
        if index in attention:
            plain = LayerKind(kind=FULL, window=kinds[index].window)
            parts = attention_parts(fields, plain)
        found.append(CacheLayer(index=index, kind="full_attention", parts=parts))
    state = shape_of(fields).accumulators[0]
    row = StateRow(name="linear_cache", role="recurrent_state", shape=state.shape)
    return found + [
        CacheLayer(index=index, kind="extra:linear_cache", parts=(States(rows=(row,)),))
        for index, kind in enumerate(kinds)
        if kind.kind == LINEAR
    ]


def recurrent_gemma(model: Model) -> list[CacheLayer]:
    """Return its cache, whose recurrent layers are empty, and the states on its modules."""
    fields = model.text
    kinds = layer_kinds(fields, fields.layers())
    found = []
    for index, kind in enumerate(kinds):
        parts = () if kind.kind == LINEAR else attention_parts(fields, kind)
        found.append(CacheLayer(index=index, kind=NAMES[kind.kind], parts=parts))
    return found + [
        CacheLayer(index=index, kind="module_state", parts=(module_states(fields),))
        for index, kind in enumerate(kinds)
        if kind.kind == LINEAR
    ]


def rwkv(model: Model) -> list[CacheLayer]:
    """Return five tensors, each of all layers."""
    fields = model.text
    layers = fields.layers()
    return [
        CacheLayer(
            index=index,
            kind="legacy:list",
            parts=(
                Stacked(
                    name="state",
                    role="state",
                    width=state.shape[0],
                    layers=layers,
                    dtype="float32" if state.fp32 else None,
                ),
            ),
        )
        for index, state in enumerate(shape_of(fields).accumulators)
    ]


def xlstm(model: Model) -> list[CacheLayer]:
    """Return one cache object with three tensors a layer and a counter."""
    fields = model.text
    layers = fields.layers("num_hidden_layers", "num_blocks")
    rows = tuple(
        StateRow(name=f"rnn_state[{layer}][{position}]", role="rnn_state", shape=state.shape)
        for layer in range(layers)
        for position, state in enumerate(shape_of(fields).accumulators)
    )
    parts = (Counter(name="seqlen_offset"), States(rows=rows))
    return [CacheLayer(index=-1, kind="xLSTMCache", parts=parts)]


def xlnet(model: Model) -> list[CacheLayer]:
    """Return the hidden states of each layer, at most `mem_len` positions where that is set."""
    fields = model.text
    longest = fields.integer_or_none("mem_len", low=0, high=MAX_TOKENS)
    part = HiddenStates(name="state", role="state", width=fields.dim("hidden_size"),
                        longest=longest or None)  # fmt: skip
    return [
        CacheLayer(index=index, kind="legacy:tuple", parts=(part,))
        for index in range(fields.layers())
    ]


def reformer(model: Model) -> list[CacheLayer]:
    """Return its one cache object: hidden states, and hash buckets of its LSH layers."""
    fields = model.text
    kinds = fields.words("attn_layers") or ["local", "lsh"] * 3
    part = ReformerStates(
        lsh=tuple(kind == "lsh" for kind in kinds),
        heads=fields.heads(),
        hashes=fields.integer("num_hashes", high=MAX_HEADS),
        chunk=fields.integer("lsh_attn_chunk_length", high=MAX_TOKENS),
        width=fields.dim("hidden_size"),
    )
    return [CacheLayer(index=-1, kind="ReformerDynamicCache", parts=(part,))]
