"""Latent attention (MLA): one compressed vector and one rotary part for all heads.

DeepSeek-V2 (https://arxiv.org/abs/2405.04434, section 2.1). Sparse variants (DeepSeek-V3.2) keep an
index key beside it, one head of `index_head_dim`, in the layers that choose positions themselves.
The number of heads and the rank of the queries change nothing of what is kept.
"""

from __future__ import annotations

from app.domain.dtypes import DTYPES
from app.domain.errors import Conflict, Unsupported, shown
from app.domain.state import MAX_LAYERS, MAX_TOKENS, LatentAttention, Layer, Shared, State
from app.readers.hf_config.attention import grouped
from app.readers.hf_config.draft import like_the_last
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import rotary_layers

# Sizes of the projections to and from the latent: none of them is kept.
LATENT_READS = frozenset({
    "head_dim", "v_head_dim", "qk_nope_head_dim", "qk_head_dim", "q_lora_rank", "index_n_heads",
    "index_topk", "num_key_value_heads", "kv_lora_rank", "qk_rope_head_dim", "use_mla",
    "index_share_for_mtp_iteration", "indexer_rope_interleave", "qk_nope_dim",
})  # fmt: skip
INDEX_READS = LATENT_READS | {
    "layer_types", "index_topk_freq", "index_skip_topk_offset", "index_topk_pattern",
    "indexer_types", "index_head_dim",
}  # fmt: skip
_FIRST_FULL = 2  # dots3_note's first layers never slide
_V2 = "https://arxiv.org/abs/2405.04434, Transformers 5.24 models/deepseek_v2"
_V32 = "DeepSeek-V3.2 report, Transformers 5.24 models/deepseek_v32"


def latent(fields: Fields, *, index_dim: int = 0) -> LatentAttention:
    """Return what a latent layer keeps of each position."""
    return LatentAttention(
        latent_dim=fields.dim("kv_lora_rank"),
        rope_dim=fields.dim("qk_rope_head_dim", low=0),
        index_dim=index_dim,
    )


def latent_layers(fields: Fields) -> list[Layer]:
    """Return equal latent layers; plain ones where the file says that there is no latent.

    DeepSeek-VL2-tiny has the type of DeepSeek-V2 and `"kv_lora_rank": null`.
    """
    without = fields.has("kv_lora_rank") and not fields.says("kv_lora_rank")
    if without or (fields.has("use_mla") and not fields.flag("use_mla", otherwise=True)):
        fields.defaults = {**fields.defaults, "head_dim": "=hidden/heads"}
        return [Layer(states=(grouped(fields).full(),))] * fields.layers()
    return [Layer(states=(latent(fields),))] * fields.layers()


def indexed_layers(fields: Fields) -> list[Layer]:
    """Return latent layers in which every layer has its own index keys."""
    index = fields.dim("index_head_dim")
    return [Layer(states=(latent(fields, index_dim=index),))] * fields.layers()


def shared_index_layers(fields: Fields, *, period: int | None = None) -> list[Layer]:
    """Return latent layers of which only those that choose positions keep index keys."""
    count = fields.layers()
    full = Layer(states=(latent(fields, index_dim=fields.dim("index_head_dim")),))
    shared = Layer(states=(latent(fields),))
    owns = index_owners(fields, count, period=period)
    return [full if own else shared for own in owns]


def _hy_v4_layers(fields: Fields) -> list[Layer]:
    return shared_index_layers(fields, period=4)


def index_owners(fields: Fields, layers: int, *, period: int | None = None) -> list[bool]:
    """Return which layers have an indexer of their own ("full"), not another's choice ("shared").

    `indexer_types` decides, then a string of F and S, then a frequency and an offset (Transformers
    5.24 models/glm_moe_dsa/configuration_glm_moe_dsa.py); `period` is the rule of types without
    these (layer 0, then each period-th from 1).
    """
    given = fields.words("indexer_types", length=layers)
    names = {"full": True, "shared": False}
    if given is None:
        pattern = fields.value("index_topk_pattern")
        if isinstance(pattern, str):
            given, names = list(pattern), {"F": True, "S": False}
        else:
            given = fields.words("index_topk_pattern")
    if given is not None:
        if len(given) != layers:
            raise Conflict(
                "{field} has {count} entries for {length} layers",
                field=fields.at("index_topk_pattern"),
                count=len(given),
                length=layers,
            )
        for name in given:
            if name not in names:
                raise Unsupported(
                    "{field} must be full or shared for each layer, got {value}",
                    field=fields.at("indexer_types"),
                    value=shown(name),
                )
        return [names[name] for name in given]
    if period is not None:
        return [index == 0 or (index - 1) % period == 0 for index in range(layers)]
    frequency = fields.integer("index_topk_freq", low=0, high=MAX_LAYERS, otherwise=1) or 1
    if frequency == 1:
        return [True] * layers
    offset = fields.integer("index_skip_topk_offset", low=0, high=MAX_LAYERS, otherwise=2)
    return [max(index - offset + 1, 0) % frequency == 0 for index in range(layers)]


def _longcat_layers(fields: Fields) -> list[Layer]:
    """Return LongCat-Flash's layers: each of `num_layers` has two attentions.

    `num_hidden_layers` in a file counts the attentions.
    """
    if fields.says("num_layers") or not fields.says("num_hidden_layers"):
        count = 2 * fields.layers("num_layers")
    else:
        count = fields.layers("num_hidden_layers")
    fields.seen("num_hidden_layers")
    return [Layer(states=(latent(fields),))] * count


def _mistral_large4_layers(fields: Fields) -> list[Layer]:
    """Return layers that may share another's latent, yet keep index keys of their own.

    Layers without rotary positions keep no rope part.
    """
    count = fields.layers()
    index = fields.dim("index_head_dim")
    owns = index_owners(fields, count)
    rotates = rotary_layers(fields, count)
    given = fields.integers("kv_source_layers", length=count, high=count - 1)
    sources = list(range(count)) if given is None else given
    rank, rope = fields.dim("kv_lora_rank"), fields.dim("qk_rope_head_dim", low=0)
    made: dict[tuple[bool, int, int | None], Layer] = {}
    layers = []
    for number, source in enumerate(sources):
        key = (owns[number], rotates[number], None if source == number else source)
        if key not in made:
            made[key] = _large4_layer(key, rank, rope, index)
        layers.append(made[key])
    return layers


def _large4_layer(key: tuple[bool, int, int | None], rank: int, rope: int, index_dim: int) -> Layer:
    owns_index, rotates, source = key
    index = index_dim if owns_index else 0
    if source is None:
        return Layer(
            states=(
                LatentAttention(latent_dim=rank, rope_dim=rope if rotates else 0, index_dim=index),
            )
        )
    states: tuple[State, ...] = (Shared(with_layer=source),)
    if index:
        states = (*states, LatentAttention(latent_dim=0, rope_dim=0, index_dim=index))
    return Layer(states=states)


# dots3_note's sliding layers have dimensions of their own; these are the class's (Transformers 5.24
# models/dots3_note/configuration_dots3_note.py).
_SWA = {"kv_lora_rank": 1024, "head_dim": 256, "qk_nope_head_dim": 192}


def _dots3_layers(fields: Fields) -> list[Layer]:
    """Return layers of sparse latent attention, and of windows with another latent."""
    count = fields.layers()
    kinds = _dots3_kinds(fields, count)
    made: dict[str, Layer] = {}
    if "indexed" in kinds or "full" in kinds:
        made["full"] = Layer(states=(latent(fields),))
    if "indexed" in kinds:
        own = latent(fields)
        state = LatentAttention(
            latent_dim=own.latent_dim,
            rope_dim=own.rope_dim,
            index_dim=fields.dim("index_head_dim"),
            index_format=DTYPES["fp32"],
        )
        made["indexed"] = Layer(states=(state,))
    if "sliding" in kinds:
        made["sliding"] = Layer(states=(_dots3_window(fields, kinds.index("sliding")),))
    return [made[kind] for kind in kinds]


def _dots3_kinds(fields: Fields, count: int) -> list[str]:
    sparse = "full" if fields.value("use_dsa") is False else "indexed"
    words = {"sliding_attention": "sliding", "indexed_attention": sparse, "full_attention": sparse}
    if fields.says("per_layer_config") and not fields.says("use_dsa"):
        words = {**words, "indexed_attention": "indexed", "full_attention": "full"}
    given = fields.words("layer_types", length=count)
    if given is None:
        slides = fields.flag("use_sliding_window", otherwise=True)
        return [
            sparse if not slides or index < _FIRST_FULL or index % 4 == 1 else "sliding"
            for index in range(count)
        ]
    fields.seen("use_sliding_window")
    for index, name in enumerate(given):
        if name not in words:
            raise Unsupported(
                "{field} is {value}, a kind of layer that {model_type} is not known to have",
                field=fields.at("layer_types", index),
                value=shown(name),
                model_type=fields.model_type,
            )
    return [words[name] for name in given]


def _dots3_window(fields: Fields, first: int) -> LatentAttention:
    window = fields.integer("sliding_window", "sliding_window_size", high=MAX_TOKENS)
    every = fields.part("per_layer_config")
    own = every.part(str(first)) if every else None
    if own is not None:
        return LatentAttention(
            latent_dim=own.dim("kv_lora_rank"),
            rope_dim=own.dim("qk_rope_head_dim", low=0),
            window=window,
        )
    rank = fields.integer("swa_kv_lora_rank", otherwise=_SWA["kv_lora_rank"])
    rope = fields.integer_or_none("swa_qk_rope_head_dim", low=0)
    if rope is None:
        head = fields.integer("swa_head_dim", otherwise=_SWA["head_dim"])
        nope = fields.integer("swa_qk_nope_head_dim", low=0, otherwise=_SWA["qk_nope_head_dim"])
        if nope > head:
            raise Conflict(
                "{field} is {nope}, more than swa_head_dim {head}",
                field=fields.at("swa_qk_nope_head_dim"),
                nope=nope,
                head=head,
            )
        rope = head - nope
    return LatentAttention(latent_dim=rank, rope_dim=rope, window=window)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="latent",
        model_types=(
            "deepseek_v2", "deepseek_v3", "kimi_k2", "sarvam_mla", "axk1", "glm4_moe_lite",
            "minicpm3", "youtu", "mistral4",
        ),
        layers=latent_layers,
        draft=like_the_last(latent_layers),
        reads=LATENT_READS,
        source=_V2,
    ),
    Family(
        name="latent_indexed",
        model_types=("deepseek_v32", "axk2"),
        layers=indexed_layers,
        draft=like_the_last(indexed_layers),
        reads=INDEX_READS,
        source=_V32,
    ),
    Family(
        name="latent_shared_index",
        model_types=("glm_moe_dsa",),
        layers=shared_index_layers,
        draft=like_the_last(indexed_layers),
        reads=INDEX_READS,
        source="Transformers 5.24 models/glm_moe_dsa/configuration_glm_moe_dsa.py",
    ),
    Family(
        name="latent_shared_index",
        model_types=("hy_v4", "hy_v4_vl_text"),
        layers=_hy_v4_layers,
        draft=like_the_last(indexed_layers),
        reads=INDEX_READS,
        source="Transformers 5.24 models/hy_v4/configuration_hy_v4.py",
    ),
    Family(
        name="longcat_flash",
        model_types=("longcat_flash",),
        layers=_longcat_layers,
        draft=like_the_last(_longcat_layers),
        reads=LATENT_READS,
        source="Transformers 5.24 models/longcat_flash",
    ),
    Family(
        name="mistral_large4",
        model_types=("mistral_large4_text",),
        layers=_mistral_large4_layers,
        reads=INDEX_READS,
        source="Transformers 5.24 models/mistral_large4/configuration_mistral_large4.py",
    ),
    Family(
        name="dots3_note",
        model_types=("dots3_note_text",),
        layers=_dots3_layers,
        reads=INDEX_READS | {
            "swa_q_lora_rank", "swa_v_head_dim", "swa_num_attention_heads",
            "swa_num_key_value_heads", "sliding_window", "sliding_window_size", "swa_kv_lora_rank",
            "swa_head_dim", "swa_qk_nope_head_dim", "use_sliding_window",
        },
        source="Transformers 5.24 models/dots3_note/configuration_dots3_note.py",
    ),
)  # fmt: skip
