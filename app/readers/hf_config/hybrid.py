"""Models that mix attention with recurrent layers, or keep both in one layer."""

from __future__ import annotations

from collections.abc import Callable

from app.domain.dtypes import dtype_of_element_bytes
from app.domain.errors import Missing, OutOfRange
from app.domain.state import (
    MAX_HEADS,
    MAX_LAYERS,
    MAX_TOKENS,
    FullAttention,
    LatentAttention,
    Layer,
    Recurrent,
    State,
    StateTensor,
)
from app.readers.hf_config.attention import HeadShape, grouped, grouped_split
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.hybrid_patterns import (
    ATTENTION,
    BOTH,
    BOTH_SLIDING,
    LINEAR,
    NONE,
    SLIDING,
    WORDS,
    Pattern,
    after_three,
    all_recurrent,
    assumed,
    at_offset,
    counted_from_one,
    everywhere,
    five_in_turn,
    flagged,
    fourth_or_last,
    full_attn_idxs,
    last_of_each,
    lettered,
    listed,
    no_rule,
    repeated_blocks,
    stated,
    third_of_four,
)
from app.readers.hf_config.hybrid_reads import (
    GLM5_READS,
    GRIFFIN_READS,
    KIMI_READS,
    LFM_READS,
    LIGHTNING_READS,
    LINEAR_READS,
    MAMBA_READS,
    NEMOTRON_READS,
    QWEN4_READS,
)
from app.readers.hf_config.latent import index_owners, latent
from app.readers.hf_config.recurrent import recurrent_state
from app.readers.hf_config.recurrent_parts import MAX_KERNEL
from app.readers.hf_config.recurrent_shapes import lightning, ngram_shape, shape_of
from app.readers.hf_config.windows import sliding

AttentionOf = Callable[[Fields], State]

# What the attention of a layer keeps


def plain(fields: Fields) -> State:
    """Return ordinary grouped attention."""
    return grouped(fields).full()


def _twice_as_wide(fields: Fields) -> State:
    """Return Zamba's attention over the hidden state beside the embedding: twice the width."""
    kv_heads = fields.integer_or_none("num_key_value_heads", high=MAX_HEADS) or fields.heads()
    own = None
    if fields.model_type == "zamba" and fields.says("attention_head_dim"):
        own = fields.dim("attention_head_dim")
    fields.seen("attention_head_dim", "attention_hidden_size", "head_dim")
    width = own or 2 * fields.dim("hidden_size") // fields.heads()
    return FullAttention(kv_heads=kv_heads, k_dim=width, v_dim=width)


def _indexed(fields: Fields) -> State:
    """Return Qwen4's sparse attention: an index key of its own width beside keys and values."""
    shape = grouped(fields)
    return FullAttention(
        kv_heads=shape.kv_heads,
        k_dim=shape.k_dim,
        v_dim=shape.v_dim,
        index_dim=fields.dim("indexer_head_dim"),
    )


def _latent(fields: Fields) -> State:
    return latent(fields)


def _window(fields: Fields, shape: HeadShape) -> State:
    window = fields.integer_or_none("sliding_window", "attention_window_size", high=MAX_TOKENS)
    if window is None:
        raise fields.missing("sliding_window")
    return sliding(shape, window)


# Layers


def hybrid(
    pattern: Pattern,
    attention: AttentionOf = plain,
    *,
    shape: Callable[[Fields], HeadShape] = grouped,
) -> Callable[[Fields], list[Layer]]:
    """Return the reader of a model whose layers attend, recur, or do both."""

    def layers_of(fields: Fields) -> list[Layer]:
        count = fields.layers()
        given = stated(fields, count)
        kinds = pattern(fields, count) if given is None else given
        return _layers(fields, kinds, attention, shape)

    return layers_of


def _layers(
    fields: Fields,
    kinds: list[str],
    attention: AttentionOf,
    shape: Callable[[Fields], HeadShape] = grouped,
) -> list[Layer]:
    made: dict[str, Layer] = {}
    for kind in dict.fromkeys(kinds):
        states: list[State] = []
        if kind in (ATTENTION, BOTH):
            states.append(attention(fields))
        elif kind in (SLIDING, BOTH_SLIDING):
            states.append(_window(fields, shape(fields)))
        if kind in (LINEAR, BOTH, BOTH_SLIDING):
            recurrent = recurrent_state(fields, shape_of(fields))
            states += [] if recurrent is None else [recurrent]
        made[kind] = Layer(states=tuple(states))
    return [made[kind] for kind in kinds]


def _nemotron_h(fields: Fields) -> list[Layer]:
    """The pattern decides how many layers there are, whatever `num_hidden_layers` says.

    M is Mamba 2, * attention, - an MLP and E experts; the latter two keep nothing.
    """
    kinds = stated(fields, None)
    pattern = fields.text("hybrid_override_pattern")
    if kinds is None:
        if pattern is None:
            raise Missing(
                "{field} is missing, and nothing else says which layers attend",
                field=fields.at("hybrid_override_pattern"),
            )
        kinds = lettered(fields, pattern)
    if not 1 <= len(kinds) <= MAX_LAYERS:
        raise OutOfRange(
            "{field} must have between {low} and {high} entries, got {value}",
            field=fields.at("hybrid_override_pattern"),
            low=1,
            high=MAX_LAYERS,
            value=len(kinds),
        )
    fields.seen("num_hidden_layers", "sliding_window")
    return _layers(fields, kinds, plain)


def _nemotron_draft(fields: Fields) -> list[Layer]:
    """Multi-token-prediction layers: each has the pattern of `mtp_hybrid_override_pattern`."""
    count = fields.integer_or_none("num_nextn_predict_layers", low=0, high=MAX_LAYERS) or 0
    words = fields.words("mtp_layers_block_type")
    pattern = fields.text("mtp_hybrid_override_pattern")
    kinds = [WORDS.get(word, NONE) for word in words] if words else []
    if pattern is not None:
        kinds = lettered(fields, pattern)
    if not count:
        return []
    if count * len(kinds) > MAX_LAYERS:
        raise OutOfRange(
            "{field} must be at most {high}, got {value}",
            field=fields.at("num_nextn_predict_layers"),
            high=MAX_LAYERS,
            value=count,
        )
    return _layers(fields, (kinds or [ATTENTION, NONE]) * count, plain)


def _glm5_next(fields: Fields) -> list[Layer]:
    """Kimi-style delta attention, and latent layers without rope that keep an index key.

    An index key is pooled later: a token keeps the key, its pooled value and one gate.
    """
    count = fields.layers()
    given = stated(fields, count)
    kinds = last_of_each(4)(fields, count) if given is None else given
    if given is None:
        assumed(fields, kinds)
    owners = index_owners(fields, count)
    width = 2 * fields.dim("index_head_dim") + 1
    base = latent(fields)
    recurrent = recurrent_state(fields, shape_of(fields))
    linear = Layer(states=() if recurrent is None else (recurrent,))
    full, shared = (
        Layer(
            states=(
                LatentAttention(
                    latent_dim=base.latent_dim, rope_dim=base.rope_dim, index_dim=index
                ),
            )
        )
        for index in (width, 0)
    )
    return [
        linear if kind == LINEAR else full if own else shared
        for kind, own in zip(kinds, owners, strict=True)
    ]


def _qwen4(fields: Fields) -> list[Layer]:
    """Layers with n-gram embeddings also keep columns of their dilated convolution, and tokens.

    `ple_layer_ids` counts from 1 and names recurrent layers.
    """
    layers = hybrid(last_of_each(4, "full_attention_interval"), _indexed)(fields)
    numbered = set(fields.integers("ple_layer_ids", low=1, high=len(layers)) or ())
    if not numbered:
        return layers
    extra = recurrent_state(fields, ngram_shape(fields))
    tokens = StateTensor(
        name="ngram_tokens",
        shape=(fields.integer("ngram_size", high=MAX_KERNEL) - 1,),
        dtype=dtype_of_element_bytes(8),
    )
    found = []
    for index, layer in enumerate(layers):
        if index + 1 in numbered:
            tensors = (*(extra.tensors if extra else ()), tokens)
            found.append(Layer(states=(*layer.states, Recurrent(tensors=tensors))))
        else:
            found.append(layer)
    return found


def _lightning_layers(fields: Fields) -> list[Layer]:
    """MiniMax-Text-01: softmax attention in one layer of eight, lightning in the others."""
    count = fields.layers()
    given = stated(fields, count)
    kinds = flagged(fields, count) if given is None else given
    state = recurrent_state(fields, lightning(fields))
    attention = Layer(states=(grouped(fields).full(),))
    linear = Layer(states=() if state is None else (state,))
    return [attention if kind == ATTENTION else linear for kind in kinds]


def _zaya(fields: Fields) -> list[Layer]:
    """Every layer attends, and keeps columns of q and k for its convolutions."""
    return hybrid(everywhere(BOTH))(fields)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="jamba",
        model_types=("jamba",),
        layers=hybrid(at_offset(ATTENTION)),
        reads=MAMBA_READS,
        source="https://arxiv.org/abs/2403.19887, Transformers 5.24 models/jamba",
    ),
    Family(
        name="bamba",
        model_types=("bamba",),
        layers=hybrid(listed),
        reads=MAMBA_READS,
        source="Transformers 5.24 models/bamba/configuration_bamba.py",
    ),
    Family(
        name="granite_hybrid",
        model_types=("granitemoehybrid",),
        layers=hybrid(all_recurrent),
        reads=MAMBA_READS,
        source="Transformers 5.24 models/granitemoehybrid/configuration_granitemoehybrid.py",
    ),
    Family(
        name="falcon_h1",
        model_types=("falcon_h1",),
        layers=hybrid(everywhere(BOTH)),
        reads=MAMBA_READS,
        source="https://arxiv.org/abs/2507.22448, Transformers 5.24 models/falcon_h1",
    ),
    Family(
        name="zamba",
        model_types=("zamba",),
        layers=hybrid(after_three, _twice_as_wide),
        reads=MAMBA_READS,
        source="https://arxiv.org/abs/2405.16712, Transformers 5.24 models/zamba",
    ),
    Family(
        name="zamba2",
        model_types=("zamba2",),
        layers=hybrid(no_rule, _twice_as_wide),
        reads=MAMBA_READS,
        source="https://arxiv.org/abs/2411.15242, Transformers 5.24 models/zamba2",
    ),
    Family(
        name="nemotron_h",
        model_types=("nemotron_h",),
        layers=_nemotron_h,
        draft=_nemotron_draft,
        reads=NEMOTRON_READS,
        source="https://arxiv.org/abs/2504.03624, Transformers 5.24 models/nemotron_h",
    ),
    Family(
        name="gated_delta",
        model_types=("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        layers=hybrid(last_of_each(4, "full_attention_interval")),
        reads=LINEAR_READS,
        source="https://arxiv.org/abs/2412.06464, Transformers 5.24 models/qwen3_next",
    ),
    Family(
        name="qwen4",
        model_types=("qwen4_exp_text",),
        layers=_qwen4,
        reads=QWEN4_READS,
        source="Transformers 5.24 models/qwen4_exp/configuration_qwen4_exp.py",
    ),
    Family(
        name="olmo_hybrid",
        model_types=("olmo_hybrid",),
        layers=hybrid(fourth_or_last),
        reads=LINEAR_READS,
        source="Transformers 5.24 models/olmo_hybrid/configuration_olmo_hybrid.py",
    ),
    Family(
        name="lara_mini",
        model_types=("lara_mini",),
        layers=hybrid(five_in_turn),
        reads=LINEAR_READS | {"sliding_window"},
        source="Transformers 5.24 models/lara_mini/configuration_lara_mini.py",
    ),
    Family(
        name="kimi_linear",
        model_types=("kimi_linear",),
        layers=hybrid(counted_from_one, _latent),
        reads=KIMI_READS,
        source="https://arxiv.org/abs/2510.26692, Transformers 5.24 models/kimi_linear",
    ),
    Family(
        name="bailing_hybrid",
        model_types=("bailing_hybrid",),
        layers=hybrid(last_of_each(None, "layer_group_size"), _latent),
        reads=KIMI_READS,
        source="Transformers 5.24 models/bailing_hybrid/configuration_bailing_hybrid.py",
    ),
    Family(
        name="glm5_next",
        model_types=("glm5_next_text",),
        layers=_glm5_next,
        reads=GLM5_READS,
        source="Transformers 5.24 models/glm5_next/configuration_glm5_next.py",
    ),
    Family(
        name="lightning",
        model_types=("minimax", "minimax_text_01", "minimax_m1"),
        layers=_lightning_layers,
        reads=LIGHTNING_READS,
        source="https://arxiv.org/abs/2501.08313, Transformers 5.24 models/minimax",
    ),
    Family(
        name="lfm2",
        model_types=("lfm2", "lfm2_moe"),
        layers=hybrid(full_attn_idxs),
        reads=LFM_READS,
        source="Transformers 5.24 models/lfm2/configuration_lfm2.py",
    ),
    Family(
        name="lfm3",
        model_types=("lfm3",),
        layers=hybrid(third_of_four),
        reads=LFM_READS,
        source="Transformers 5.24 models/lfm3/configuration_lfm3.py",
    ),
    Family(
        name="recurrent_gemma",
        model_types=("recurrent_gemma",),
        layers=hybrid(repeated_blocks, shape=grouped_split),
        reads=GRIFFIN_READS,
        source="https://arxiv.org/abs/2402.19427, Transformers 5.24 models/recurrent_gemma",
    ),
    Family(
        name="zaya",
        model_types=("zaya",),
        layers=_zaya,
        reads=frozenset({"layer_types", "sliding_window", "cca_time0", "cca_time1", "cca"}),
        source="Transformers 5.24 models/zaya/configuration_zaya.py",
    ),
)
