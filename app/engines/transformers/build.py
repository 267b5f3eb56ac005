"""From a model to its cache: the list of cache layers that Transformers makes for it."""

from __future__ import annotations

from collections.abc import Callable

from app.engines.transformers.cache import CacheLayer
from app.engines.transformers.crossing import (
    bart,
    blt,
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
    "seamless_m4t_v2", "speech_to_text", "whisper",
)  # fmt: skip
_T5 = ("longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5")

# Wrappers that give any decoder a cross-attention to their encoder.
_WRAPS_CROSS = frozenset({"encoder-decoder", "musicgen", "musicgen_melody",
                          "speech-encoder-decoder", "vision-encoder-decoder"})  # fmt: skip

_BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(_BART, bart),
    **dict.fromkeys(_T5, t5),
    "blt": blt,
    "dory": dory,
    "hrm_text": hrm,
    "inkling2_loop_text": inkling_loop,
    "longcat_flash": longcat,
    "megatron-bert": empty_cross,
    "minimax": minimax,
    "mllama_text_model": mllama,
    "moonshine": moonshine,
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
    if model.outer.model_type in _WRAPS_CROSS:
        return with_cross(model)
    special = _BUILDERS.get(model.text.model_type)
    return special(model) if special is not None else decoder(model.text)
