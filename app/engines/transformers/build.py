"""From a model to its cache: the list of cache layers that Transformers makes for it."""

from __future__ import annotations

from collections.abc import Callable

from app.engines.transformers.cache import CacheLayer
from app.engines.transformers.crossing import (
    bart,
    blt,
    dia,
    empty_cross,
    mllama,
    moonshine,
    prophetnet,
    t5,
    with_cross,
)
from app.engines.transformers.decoder import decoder
from app.engines.transformers.model import Model
from app.engines.transformers.stacks import (
    dory,
    hrm,
    inkling_loop,
    longcat,
    minimax,
    nemotron_h,
    recurrent_gemma,
    reformer,
    rwkv,
    xlnet,
    xlstm,
)

Builder = Callable[[Model], list[CacheLayer]]

_BART = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "fsmt", "led", "m2m_100",
    "marian", "mbart", "mvp", "nllb-moe", "pegasus", "pegasus_x", "plbart", "seamless_m4t",
    "seamless_m4t_v2", "speech_to_text", "speecht5",
    "whisper",
)  # fmt: skip
_T5 = (
    "longt5",
    "mt5",
    "pix2struct_text_model",
    "pop2piano",
    "switch_transformers",
    "t5",
    "udop",
    "umt5",
)

# Decoders whose caches were read in source and not measured.
NOT_MEASURED = frozenset(
    {
        "blip_text_model", "canary_decoder", "coarse_acoustics", "cohere_asr", "dia_decoder",
        "glm_image_text", "idefics", "kosmos_2_text_model", "moonshine_streaming",
        "musicgen_melody_decoder", "pix2struct_text_model", "pp_formulanet_text",
        "qwen3_omni_moe_talker_text", "seamless_m4t_v2", "speecht5", "udop",
        "voxtral_realtime_text",
    }
)  # fmt: skip

# Wrappers that give any decoder a cross-attention to their encoder.
_WRAPS_CROSS = frozenset({"encoder-decoder", "musicgen", "musicgen_melody",
                          "speech-encoder-decoder", "vision-encoder-decoder"})  # fmt: skip

_BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(_BART, bart),
    **dict.fromkeys(_T5, t5),
    "blt": blt,
    "canary_decoder": with_cross,
    "cohere_asr": with_cross,
    "dia_decoder": dia,
    "dory": dory,
    "hrm_text": hrm,
    "inkling2_loop_text": inkling_loop,
    "longcat_flash": longcat,
    "megatron-bert": empty_cross,
    "minimax": minimax,
    "mllama_text_model": mllama,
    "moonshine": moonshine,
    "moonshine_streaming": with_cross,
    "musicgen_decoder": empty_cross,
    "nemotron_h": nemotron_h,
    "prophetnet": prophetnet,
    "recurrent_gemma": recurrent_gemma,
    "reformer": reformer,
    "rembert": empty_cross,
    "roc_bert": empty_cross,
    "rwkv": rwkv,
    "t5_gemma_module": with_cross,
    "t5gemma2_decoder": with_cross,
    "xlm": empty_cross,
    "xlnet": xlnet,
    "xlstm": xlstm,
}


def build(model: Model) -> list[CacheLayer]:
    """Return the cache layers of a model, in the order of its cache's list.

    Raises:
        DomainError: when the config does not decide them, or its class would not run.

    """
    kind = model.text.model_type
    if kind in NOT_MEASURED:
        model.text.assume(
            "not_measured",
            "no forward pass of {model_type} was measured; this follows its class",
            model_type=kind,
        )
    if model.outer.model_type in _WRAPS_CROSS:
        return with_cross(model)
    special = _BUILDERS.get(model.text.model_type)
    return special(model) if special is not None else decoder(model.text)
