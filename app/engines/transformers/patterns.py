"""The layer types that a class fills in where the file names none.

Each follows the __post_init__ of its class: Transformers 5.24 models/<type>/.
"""

from __future__ import annotations

from collections.abc import Callable

from app.domain.errors import Conflict, Missing, Unsupported
from app.domain.state import MAX_LAYERS, MAX_TOKENS
from app.engines.transformers.kinds import (
    CHUNKED,
    CSA,
    FULL,
    HCA,
    HYBRID,
    HYBRID_SLIDING,
    INDEXED,
    LINEAR,
    REFERENCE,
    SLIDING,
    SPARSE,
)
from app.engines.transformers.windows import asked_window, window_of
from app.readers.hf_config.fields import Fields, is_mapping

Pattern = Callable[[Fields, int], list[str] | None]


def _last_of_each(period_field: str, period: int | None, before: str = SLIDING,
                  last: str = FULL) -> Pattern:  # fmt: skip
    """Return the pattern whose every n-th layer is `last`; the file may name n."""

    def pattern(fields: Fields, layers: int) -> list[str]:
        if period_field:
            each = fields.integer(period_field, low=1, high=MAX_LAYERS, otherwise=period)
        else:
            each = period or 1
        return [before if (index + 1) % each else last for index in range(layers)]

    return pattern


def _first_of_each(period: int, period_field: str = "") -> Pattern:
    def pattern(fields: Fields, layers: int) -> list[str]:
        each = period
        if period_field:
            each = fields.integer(period_field, low=1, high=MAX_LAYERS, otherwise=period)
        return [SLIDING if index % each else FULL for index in range(layers)]

    return pattern


def _all(kind: str) -> Pattern:
    return lambda _, layers: [kind] * layers


def _from_max_window_layers(fields: Fields, layers: int) -> list[str]:
    """Layers from `max_window_layers` on slide (qwen2, qwen3, dots1)."""
    window = window_of(fields)
    if window is None:
        return [FULL] * layers
    first = fields.integer("max_window_layers", low=0, high=MAX_LAYERS)
    return [SLIDING if index >= first else FULL for index in range(layers)]


def _even_below_max_window_layers(fields: Fields, layers: int) -> list[str]:
    """Only even layers below `max_window_layers` slide (qwen2_moe)."""
    if not fields.flag("use_sliding_window"):
        return [FULL] * layers
    end = fields.integer("max_window_layers", low=0, high=MAX_LAYERS)
    return [SLIDING if index % 2 == 0 and index < end else FULL for index in range(layers)]


def _exaone(fields: Fields, layers: int) -> list[str]:
    window = fields.integer_or_none("sliding_window", low=0, high=MAX_TOKENS)
    period = fields.value("sliding_window_pattern")
    if window is None or isinstance(period, str):
        raise Unsupported(
            "{field} is missing: Transformers 5.24 cannot derive it without a window, nor from a "
            "pattern of letters",
            field=fields.at("layer_types"),
        )
    return _last_of_each("sliding_window_pattern", 4)(fields, layers) or []


def _cohere2_moe(fields: Fields, layers: int) -> list[str]:
    dense = fields.integer("first_k_dense_replace", low=0, high=MAX_LAYERS, otherwise=0)
    before = fields.integer("prefix_dense_sliding_window_pattern", high=MAX_LAYERS)
    each = fields.integer("sliding_window_pattern", high=MAX_LAYERS)
    return [SLIDING if (index + 1) % before else FULL for index in range(min(dense, layers))] + [
        SLIDING if (index + 1) % each else FULL for index in range(max(layers - dense, 0))
    ]


def _llama4(fields: Fields, layers: int) -> list[str]:
    uses_rope = fields.integers("no_rope_layers", high=1)
    if not uses_rope:
        each = fields.integer("no_rope_layer_interval", high=MAX_LAYERS, otherwise=4)
        uses_rope = [int((index + 1) % each != 0) for index in range(layers)]
    chunk = fields.integer_or_none("attention_chunk_size", low=0, high=MAX_TOKENS)
    return [CHUNKED if rope and chunk is not None else FULL for rope in uses_rope]


def _smollm3(fields: Fields, layers: int) -> list[str]:
    uses_rope = fields.integers("no_rope_layers", length=layers, high=1)
    if uses_rope is None:
        each = fields.integer("no_rope_layer_interval", high=MAX_LAYERS, otherwise=4)
        uses_rope = [int((index + 1) % each != 0) for index in range(layers)]
    slides = asked_window(fields) is not None
    return [SLIDING if slides and not rope else FULL for rope in uses_rope]


def _beam(fields: Fields, layers: int) -> list[str]:
    kinds = _last_of_each("", 6)(fields, layers) or []
    return [*kinds[:-1], FULL]


def _from_the_end(fields: Fields, layers: int) -> list[str]:  # noqa: ARG001 - a Pattern
    return [FULL if (layers - 1 - index) % 4 == 0 else SLIDING for index in range(layers)]


def _flint(fields: Fields, layers: int) -> list[str]:  # noqa: ARG001 - a Pattern
    return [
        FULL if index < 2 or index % 4 == 1 or index == layers - 1 else SLIDING  # noqa: PLR2004
        for index in range(layers)
    ]


def _mimo(fields: Fields, layers: int) -> list[str]:  # noqa: ARG001 - a Pattern
    return [FULL if index == 0 or (index + 1) % 6 == 0 else SLIDING for index in range(layers)]


def _all_by_window(kind: str) -> Pattern:
    def pattern(fields: Fields, layers: int) -> list[str]:
        window = fields.integer_or_none("sliding_window", low=0, high=MAX_TOKENS)
        return [FULL if window is None else kind] * layers

    return pattern


def _dots3(fields: Fields, layers: int) -> list[str]:
    slides = fields.flag("use_sliding_window", otherwise=True)
    return [
        FULL if not slides or index < 2 or index % 4 == 1 else SLIDING  # noqa: PLR2004
        for index in range(layers)
    ]


def _deepseek_v4(fields: Fields, layers: int) -> list[str]:
    ratios = fields.integers("compress_ratios")
    if ratios is not None:
        names = {0: SLIDING, 4: CSA, 128: HCA}
        for index, ratio in enumerate(ratios):
            if ratio not in names:
                raise Unsupported(
                    "{field} must be 0, 4 or 128, got {value}",
                    field=fields.at("compress_ratios", index),
                    value=ratio,
                )
        return [names[ratio] for ratio in ratios][:layers]
    return [HCA if index < 2 or index % 2 == 0 else CSA for index in range(layers)]  # noqa: PLR2004


def _minimax_m3(fields: Fields, layers: int) -> list[str]:
    sparse = fields.value("sparse_attention_config")
    if is_mapping(sparse) and "sparse_attention_freq" in sparse:
        own = Fields(raw=sparse, model_type=fields.model_type,
                     path=fields.at("sparse_attention_config"))  # fmt: skip
        flags = own.integers("sparse_attention_freq", length=layers, high=1) or []
        return [SPARSE if flag else FULL for flag in flags]
    return [FULL] * layers


def _kimi_linear(fields: Fields, layers: int) -> list[str]:
    linear = fields.value("linear_attn_config")
    if is_mapping(linear) and "full_attn_layers" in linear and "kda_layers" in linear:
        own = Fields(raw=linear, model_type=fields.model_type,
                     path=fields.at("linear_attn_config"))  # fmt: skip
        kinds = [""] * layers
        for name, kind in (("full_attn_layers", FULL), ("kda_layers", LINEAR)):
            # The file counts its layers from 1.
            for index in own.integers(name, low=1, high=layers) or []:
                kinds[index - 1] = kind
        if "" in kinds:
            raise Missing("{field} names no kind for layer {layer}",
                          field=fields.at("linear_attn_config"), layer=kinds.index(""))  # fmt: skip
        return kinds
    return [FULL if index and index % 4 == 0 else LINEAR for index in range(layers)]


def _zamba(fields: Fields, layers: int) -> list[str]:
    period = fields.integer("attn_layer_period", high=MAX_LAYERS)
    offset = fields.integer("attn_layer_offset", low=0, high=MAX_LAYERS)
    return [LINEAR, LINEAR, HYBRID][:layers] + [
        HYBRID if index % period == offset else LINEAR for index in range(layers - 3)
    ]


def _zamba2(fields: Fields, layers: int) -> list[str]:
    """The list that Zamba2's class takes when the file names none: 54 layers, 9 of them hybrid."""
    kinds = [LINEAR, *([LINEAR] * 5 + [HYBRID]) * 7, *[LINEAR] * 4, HYBRID, *[LINEAR] * 3, HYBRID,
             *[LINEAR] * 2]  # fmt: skip
    if len(kinds) != layers:
        raise Conflict(
            "{field} is missing, and the class's own list has {count} entries for {layers} layers",
            field=fields.at("layers_block_type"),
            count=len(kinds),
            layers=layers,
        )
    return kinds


def _jamba(fields: Fields, layers: int) -> list[str]:
    period = fields.integer("attn_layer_period", high=MAX_LAYERS)
    offset = fields.integer("attn_layer_offset", low=0, high=MAX_LAYERS)
    return [FULL if index % period == offset else LINEAR for index in range(layers)]


def _bamba(fields: Fields, layers: int) -> list[str]:
    attention = set(fields.integers("attn_layer_indices", high=MAX_LAYERS) or [])
    return [FULL if index in attention else LINEAR for index in range(layers)]


def _olmo_hybrid(fields: Fields, layers: int) -> list[str]:  # noqa: ARG001 - a Pattern
    kinds = [FULL if index % 4 == 3 else LINEAR for index in range(layers)]  # noqa: PLR2004
    return kinds if FULL in kinds else [*kinds[:-1], FULL]


def _lara_mini(fields: Fields, layers: int) -> list[str]:  # noqa: ARG001 - a Pattern
    each = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)
    return [each[index % 5] for index in range(layers)]


def _lfm2(fields: Fields, layers: int) -> list[str]:
    attention = fields.integers("full_attn_idxs", high=MAX_LAYERS)
    if attention is None:
        return [FULL] * layers
    return [FULL if index in set(attention) else LINEAR for index in range(layers)]


def _lfm3(fields: Fields, layers: int) -> list[str]:  # noqa: ARG001 - a Pattern
    return [
        FULL if index % 4 == 2 else SLIDING if index % 4 == 0 and index else LINEAR  # noqa: PLR2004
        for index in range(layers)
    ]


def _inkling(fields: Fields, layers: int) -> list[str]:
    local = fields.integers("local_layer_ids", high=MAX_LAYERS)
    if local is None:
        return [HYBRID_SLIDING if (index + 1) % 6 else HYBRID for index in range(layers)]
    return [HYBRID_SLIDING if index in set(local) else HYBRID for index in range(layers)]


def _recurrent_gemma(fields: Fields, layers: int) -> list[str]:
    blocks = fields.words("block_types") or ["recurrent", "recurrent", "attention"]
    each = [SLIDING if block == "attention" else LINEAR for block in blocks]
    return [each[index % len(each)] for index in range(layers)]


PATTERNS: dict[str, Pattern] = {
    "afmoe": _last_of_each("global_attn_every_n_layers", None),
    "axk2": _all(INDEXED),
    "bailing_hybrid": _last_of_each("layer_group_size", None, LINEAR),
    "bamba": _bamba,
    "beam": _beam,
    "cohere2": _last_of_each("sliding_window_pattern", 4),
    "cohere2_moe": _cohere2_moe,
    "cohere_compass_text": _all(FULL),
    "cwm": _first_of_each(4),
    "deepseek_v32": _all(INDEXED),
    "deepseek_v4": _deepseek_v4,
    "diffusion_gemma_text": _last_of_each("", 6),
    "dory": _last_of_each("", 4),
    "dots1": _from_max_window_layers,
    "dots3_note_text": _dots3,
    "exaone4": _exaone,
    "exaone_moe": _exaone,
    "falcon_h1": _all(HYBRID),
    "falcon_mamba": _all(LINEAR),
    "flint": _flint,
    "gemma2": _last_of_each("", 2),
    "gemma3_text": _last_of_each("sliding_window_pattern", 6),
    "gemma3n_text": _last_of_each("", 5),
    "gemma4_text": _last_of_each("", 6),
    "gemma4_unified_text": _last_of_each("", 6),
    "glm5_next_text": _last_of_each("", 4, LINEAR, INDEXED),
    "glm_moe_dsa": _all(INDEXED),
    "gpt_oss": _last_of_each("", 2),
    "granite_swa": _first_of_each(4),
    "granitemoe_swa": _first_of_each(4),
    "granitemoehybrid": _all(LINEAR),
    "hy_v4": _all(INDEXED),
    "hy_v4_vl_text": _all(INDEXED),
    "inkling2_loop_text": _last_of_each("", 6, HYBRID_SLIDING, HYBRID),
    "inkling2_text": _last_of_each("", 6, HYBRID_SLIDING, HYBRID),
    "inkling_text": _inkling,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "kolibri1": _last_of_each("", 5),
    "laguna": _all(FULL),
    "lara_mini": _lara_mini,
    "lfm2": _lfm2,
    "lfm3": _lfm3,
    "llama4_text": _llama4,
    "mamba": _all(LINEAR),
    "mamba2": _all(LINEAR),
    "mellum": _all(FULL),
    "mimo_v2_flash": _mimo,
    "minimax": _last_of_each("", 2, FULL, LINEAR),
    "minimax_m3_vl_text": _minimax_m3,
    "ministral": _all_by_window(SLIDING),
    "mistral_large4_text": _all(INDEXED),
    "modernbert-decoder": _first_of_each(3, "global_attn_every_n_layers"),
    "muse_glimmer_text": _from_the_end,
    "muse_spark_text": _from_the_end,
    "olmo3": _last_of_each("", 4),
    "olmo_hybrid": _olmo_hybrid,
    "qwen2": _from_max_window_layers,
    "qwen2_5_omni_text": _from_max_window_layers,
    "qwen2_5_vl_text": _from_max_window_layers,
    "qwen2_moe": _even_below_max_window_layers,
    "qwen2_vl_text": _from_max_window_layers,
    "qwen3": _from_max_window_layers,
    "qwen3_5_moe_text": _last_of_each("full_attention_interval", 4, LINEAR),
    "qwen3_5_text": _last_of_each("full_attention_interval", 4, LINEAR),
    "qwen3_next": _last_of_each("full_attention_interval", 4, LINEAR),
    "qwen4_exp_text": _last_of_each("full_attention_interval", 4, LINEAR, INDEXED),
    "recurrent_gemma": _recurrent_gemma,
    "smollm3": _smollm3,
    "step3p5": _all(FULL),
    "t5_gemma_module": _last_of_each("", 2),
    "t5gemma2_decoder": _last_of_each("sliding_window_pattern", 6),
    "t5gemma2_text": _last_of_each("sliding_window_pattern", 6),
    "unlimited_ocr_text": _all_by_window(REFERENCE),
    "vaultgemma": _last_of_each("", 2),
    "zamba": _zamba,
    "zamba2": _zamba2,
    "zaya": _all(HYBRID),
}
