"""Decoders that alternate windows (or chunks) and full attention by a rule of their type.

Rules: models/<type>/configuration_<type>.py of Transformers 5.24, which fill in `layer_types`.
"""

from __future__ import annotations

from app.domain.state import MAX_LAYERS, MAX_TOKENS
from app.readers.hf_config.attention import multi_head
from app.readers.hf_config.draft import like_the_last
from app.readers.hf_config.family import Family
from app.readers.hf_config.fields import Fields
from app.readers.hf_config.windows import (
    FULL,
    SLIDING,
    chunks_with_rope,
    every,
    every_backwards,
    every_from,
    from_max_window_layers,
    nowhere,
    unless_no_window,
    window_halved_if,
    windowed,
)

PATTERN = ("sliding_window_pattern", "_sliding_window_pattern")


def _configuration(model_type: str) -> str:
    return f"Transformers 5.24 models/{model_type}/configuration_{model_type}.py"


def _ministral(fields: Fields, layers: int, window: int | None) -> list[str]:  # noqa: ARG001
    return [FULL if window is None else SLIDING] * layers


def _flint(fields: Fields, layers: int, window: int | None) -> list[str]:  # noqa: ARG001
    """Return full attention in the first two layers, in every fourth from 1, and in the last."""
    full = {0, 1, layers - 1}
    return [FULL if index in full or index % 4 == 1 else SLIDING for index in range(layers)]


def _cohere2_moe(fields: Fields, layers: int, window: int | None) -> list[str]:  # noqa: ARG001
    """Return two periods: one in the leading dense layers, one in the rest."""
    dense = fields.integer("first_k_dense_replace", low=0, high=MAX_LAYERS, otherwise=0)
    prefix = fields.integer("prefix_dense_sliding_window_pattern", high=MAX_LAYERS)
    period = fields.integer("sliding_window_pattern", high=MAX_LAYERS)
    head = [SLIDING if (index + 1) % prefix else FULL for index in range(min(dense, layers))]
    rest = [SLIDING if (index + 1) % period else FULL for index in range(layers - len(head))]
    return head + rest


def _modernbert_window(fields: Fields) -> int | None:
    """Return the window, else half of `local_attention`, which spans both sides."""
    if fields.says("sliding_window"):
        fields.seen("local_attention")
        return fields.integer("sliding_window", high=MAX_TOKENS)
    return fields.integer("local_attention", low=2, high=MAX_TOKENS) // 2


_exaone4 = windowed(unless_no_window(every(4, "sliding_window_pattern")))
_mellum = windowed(nowhere)

FAMILIES: tuple[Family, ...] = (
    Family(
        name="gemma2",
        model_types=("gemma2", "vaultgemma"),
        layers=windowed(every(2)),
        aliases={"sliding_window": "sliding_window_size"},
        source=_configuration("gemma2"),
    ),
    Family(
        name="gemma3",
        model_types=("gemma3_text",),
        layers=windowed(every(6, *PATTERN), window=window_halved_if("true")),
        source=_configuration("gemma3"),
    ),
    Family(
        name="cohere2",
        model_types=("cohere2",),
        layers=windowed(every(4, "sliding_window_pattern")),
        source=_configuration("cohere2"),
    ),
    Family(
        name="cohere_compass",
        model_types=("cohere_compass_text",),
        layers=windowed(nowhere),
        source=_configuration("cohere_compass"),
    ),
    Family(
        name="cohere2_moe",
        model_types=("cohere2_moe",),
        layers=windowed(_cohere2_moe),
        source=_configuration("cohere2_moe"),
    ),
    Family(
        name="exaone4",
        model_types=("exaone4", "exaone4_5_text", "exaone_moe"),
        layers=_exaone4,
        draft=like_the_last(_exaone4),
        source=_configuration("exaone4"),
    ),
    Family(
        name="olmo3", model_types=("olmo3",), layers=windowed(every(4)),
        source=_configuration("olmo3"),
    ),
    Family(
        name="gpt_oss", model_types=("gpt_oss",), layers=windowed(every(2)),
        source=_configuration("gpt_oss"),
    ),
    Family(
        name="afmoe",
        model_types=("afmoe",),
        layers=windowed(every(4, "global_attn_every_n_layers")),
        source=_configuration("afmoe"),
    ),
    Family(
        name="modernbert-decoder",
        model_types=("modernbert-decoder",),
        layers=windowed(
            every_from(0, 3, "global_attn_every_n_layers"),
            window=_modernbert_window,
            heads=multi_head,
        ),
        source=_configuration("modernbert_decoder"),
    ),
    Family(
        name="granite_swa",
        model_types=("granite_swa", "granitemoe_swa"),
        layers=windowed(every_from(0, 4)),
        source=_configuration("granite_swa"),
    ),
    Family(
        name="cwm", model_types=("cwm",), layers=windowed(every_from(0, 4)),
        source=_configuration("cwm"),
    ),
    Family(
        name="beam",
        model_types=("beam",),
        layers=windowed(every(6, last_is_full=True)),
        source=_configuration("beam"),
    ),
    Family(
        name="kolibri1", model_types=("kolibri1",), layers=windowed(every(5)),
        source=_configuration("kolibri1"),
    ),
    Family(
        name="flint", model_types=("flint",), layers=windowed(_flint),
        source=_configuration("flint"),
    ),
    Family(
        name="muse",
        model_types=("muse_glimmer_text", "muse_spark_text"),
        layers=windowed(every_backwards(4)),
        source=_configuration("muse_glimmer"),
    ),
    Family(
        name="ministral", model_types=("ministral",), layers=windowed(_ministral),
        source=_configuration("ministral"),
    ),
    Family(
        name="dots1",
        model_types=("dots1",),
        layers=windowed(from_max_window_layers),
        draft=like_the_last(windowed(from_max_window_layers)),
        source=_configuration("dots1"),
    ),
    Family(
        name="laguna",
        model_types=("laguna", "mellum"),
        layers=_mellum,
        draft=like_the_last(_mellum),
        reads=frozenset({"mtp_layer_types"}),
        source=_configuration("laguna"),
    ),
    Family(
        name="llama4",
        model_types=("llama4_text",),
        layers=windowed(chunks_with_rope),
        reads=frozenset({"attention_chunk_size", "nope_layer_interval"}),
        source=_configuration("llama4"),
    ),
)  # fmt: skip
