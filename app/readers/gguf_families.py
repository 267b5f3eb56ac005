"""How llama.cpp sorts architectures: which memory each gets, and what its header leaves unsaid.

A GGUF header gives numbers; which layers slide, which are recurrent and which own a cache is partly
decided by the name in `general.architecture`. Each row says what the loader of that name does
(https://github.com/ggml-org/llama.cpp, src/models/*.cpp and src/llama-model.cpp, read in October
2026). An architecture without a row is refused: its cache could be anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from app.domain.errors import Unsupported, shown
from app.domain.notes import Note


class Memory(StrEnum):
    """The kind of memory that a context of this architecture creates."""

    NONE = "none"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"
    DSA = "dsa"
    MSA = "msa"
    DSV4 = "dsv4"


class RecurrentLayers(StrEnum):
    """How the loader decides which layers are recurrent."""

    NONE = "none"
    ALL = "all"
    BESIDE_ATTENTION = "beside_attention"
    INTERVAL = "interval"
    NO_KV_HEADS = "no_kv_heads"
    NO_KV_HEADS_NO_FF = "no_kv_heads_no_ff"


class StateRule(StrEnum):
    """Which sizes make up the two rows of a recurrent layer."""

    SSM = "ssm"
    RWKV = "rwkv"
    SHORT_CONVOLUTION = "short_convolution"
    KDA = "kda"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRule:
    """Which layers slide when the header says little.

    `period` n: every n-th layer is full (the last of each n, or the first when `full_first`);
    0 makes every layer slide; None: the header must list the layers. `default_window` stands in for
    a missing `attention.sliding_window`; without one the key is required, or, when `optional`, its
    absence means that nothing slides. `fixed_window` overrides the header's number.
    """

    period: int | None
    full_first: bool = False
    default_window: int | None = None
    fixed_window: int | None = None
    optional: bool = False
    chunked: bool = False
    only_with_layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture as llama.cpp treats it.

    `latent`: keys `attention.*_length_mla` make it cache the compressed vector. `latent_model`: the
    model is a latent one even where this engine caches its heads one by one. `rolls_back`: keeps
    extra recurrent rows for speculative drafting (`llm_arch_supports_rs_rollback`).
    `first_shared_layer`: layers from there on read another layer's cache. `lists_indexers`: the
    header says which layers own an indexer (elsewhere every layer does).
    """

    memory: Memory = Memory.ATTENTION
    window: WindowRule | None = None
    recurrent: RecurrentLayers = RecurrentLayers.NONE
    state: StateRule | None = None
    latent: bool = False
    latent_model: bool = False
    rolls_back: bool = False
    first_shared_layer: int | None = None
    shares_by_key: bool = False
    lists_indexers: bool = False


_PLAIN_NAMES = """
llama deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2
qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe plamo codeshell orion internlm2
minicpm gemma starcoder2 xverse command-r dbrx olmo olmoe openelm arctic deepseek chatglm glm4
glm4moe bitnet bitnet-25 jais jais2 nemotron exaone granite granitemoe chameleon bailingmoe
bailingmoe2 dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 smollm3
seed_oss grovemoe apertus minimax-m2 cogvlm pangu-embedded mistral3 paddleocr llama-embed maincoder
talkie deepseek2-ocr
"""
_NO_CACHE_NAMES = """
bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert
gemma-embedding t5encoder dream llada llada-moe rnd1 wavtokenizer-dec
"""


def _every(period: int, **rest: bool | int | None) -> WindowRule:
    return WindowRule(period=period, **rest)  # type: ignore[arg-type]


_HEADER_LISTS = WindowRule(period=None)
_OPTIONAL_4 = _every(4, optional=True)
_SSM_BY_KV_HEADS = Family(
    memory=Memory.HYBRID, recurrent=RecurrentLayers.NO_KV_HEADS, state=StateRule.SSM
)
_NEMOTRON_H = Family(
    memory=Memory.HYBRID,
    recurrent=RecurrentLayers.NO_KV_HEADS_NO_FF,
    state=StateRule.SSM,
    rolls_back=True,
)
_LFM2 = Family(
    memory=Memory.HYBRID,
    recurrent=RecurrentLayers.NO_KV_HEADS,
    state=StateRule.SHORT_CONVOLUTION,
    rolls_back=True,
)
_GATED_DELTA = Family(memory=Memory.HYBRID, recurrent=RecurrentLayers.INTERVAL, state=StateRule.SSM)
_GATED_DELTA_ROLLING = Family(
    memory=Memory.HYBRID,
    recurrent=RecurrentLayers.INTERVAL,
    state=StateRule.SSM,
    rolls_back=True,
)
_KDA_ROLLING = Family(
    memory=Memory.HYBRID,
    recurrent=RecurrentLayers.NO_KV_HEADS,
    state=StateRule.KDA,
    latent=True,
    latent_model=True,
    rolls_back=True,
)
_MAMBA = Family(memory=Memory.RECURRENT, recurrent=RecurrentLayers.ALL, state=StateRule.SSM)
_RWKV = Family(memory=Memory.RECURRENT, recurrent=RecurrentLayers.ALL, state=StateRule.RWKV)
_DSA_LISTED = Family(memory=Memory.DSA, latent=True, latent_model=True, lists_indexers=True)

FAMILIES: dict[str, Family] = {
    **{name: Family() for name in _PLAIN_NAMES.split()},
    **{name: Family(memory=Memory.NONE) for name in _NO_CACHE_NAMES.split()},
    # Windows by a period that the file need not name.
    "gemma2": Family(window=_every(2, default_window=4096)),
    "gemma3": Family(window=_every(6, optional=True)),
    "gemma3n": Family(window=_every(5), first_shared_layer=20),
    "gemma4": Family(window=_HEADER_LISTS, shares_by_key=True),
    "gpt-oss": Family(window=_every(2)),
    "cohere2": Family(window=_every(4)),
    "cohere2moe": Family(window=_every(4, full_first=True, optional=True)),
    "llama4": Family(window=_every(4, fixed_window=8192, default_window=8192, chunked=True)),
    "exaone4": Family(window=_every(4, default_window=4096, only_with_layers=64)),
    "exaone-moe": Family(window=_every(4, default_window=128)),
    "olmo2": Family(window=_OPTIONAL_4),
    "afmoe": Family(window=_OPTIONAL_4),
    "mellum": Family(window=_OPTIONAL_4),
    "plamo3": Family(window=_every(8, optional=True)),
    "smallthinker": Family(window=_every(4, full_first=True, fixed_window=4096, optional=True)),
    "laguna": Family(window=_every(4, full_first=True, optional=True)),
    "mimo2": Family(window=_HEADER_LISTS),
    "step35": Family(window=_HEADER_LISTS),
    "maple": Family(window=_HEADER_LISTS),
    "spark2_5": Family(window=_HEADER_LISTS),
    # One compressed vector for all heads.
    "deepseek2": Family(latent=True, latent_model=True),
    "mistral4": Family(latent=True, latent_model=True),
    "minicpm3": Family(latent_model=True),
    "plm": Family(latent_model=True),
    "deepseek32": Family(memory=Memory.DSA, latent=True, latent_model=True),
    "glm-dsa": _DSA_LISTED,
    "hy_v4": _DSA_LISTED,
    "hy-v4": _DSA_LISTED,
    "dots3note": Family(
        memory=Memory.DSA,
        window=_HEADER_LISTS,
        latent=True,
        latent_model=True,
        lists_indexers=True,
    ),
    "deepseek4": Family(memory=Memory.DSV4, window=_every(0), latent_model=True, rolls_back=True),
    "minimax-m3": Family(memory=Memory.MSA),
    # Recurrent, alone or between or beside attention layers.
    "mamba": _MAMBA,
    "mamba2": _MAMBA,
    "rwkv6": _RWKV,
    "rwkv6qwen2": _RWKV,
    "rwkv7": _RWKV,
    "arwkv7": _RWKV,
    "jamba": _SSM_BY_KV_HEADS,
    "plamo2": _SSM_BY_KV_HEADS,
    "granitehybrid": _SSM_BY_KV_HEADS,
    "falcon-h1": Family(
        memory=Memory.HYBRID,
        recurrent=RecurrentLayers.BESIDE_ATTENTION,
        state=StateRule.SSM,
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "lfm2": _LFM2,
    "lfm2moe": _LFM2,
    "qwen3next": _GATED_DELTA,
    "qwen35": _GATED_DELTA_ROLLING,
    "qwen35moe": _GATED_DELTA_ROLLING,
    "kimi-linear": Family(
        memory=Memory.HYBRID,
        recurrent=RecurrentLayers.NO_KV_HEADS,
        state=StateRule.KDA,
        latent=True,
        latent_model=True,
    ),
    "kimi-k3": _KDA_ROLLING,
    "bailingmoe3": _KDA_ROLLING,
}

# Known names whose memory has parts that no rule here covers; the reason is shown.
_NOT_MODELLED = {
    "qwen4exp": Note("", "its indexer cache and its n-gram states"),
    "glm5-next": Note("", "its pooled indexer cache"),
    "t5": Note("", "its encoder's part, which has no cache of its own"),
    "gemma4-assistant": Note("", "the cache that it shares with another model"),
    "eagle3": Note("", "a draft head that runs inside another model's context"),
    "dflash": Note("", "a draft head that runs inside another model's context"),
    "clip": Note("", "an image encoder without a context"),
}


def family_of(architecture: str) -> Family:
    """Return the row of a `general.architecture` value.

    Raises:
        Unsupported: for a name without a row, or one whose memory has parts not modelled here.

    """
    if (reason := _NOT_MODELLED.get(architecture)) is not None:
        raise Unsupported(
            "{field} {value} is not covered: {reason}",
            field="general.architecture",
            value=shown(architecture),
            reason=reason,
        )
    family = FAMILIES.get(architecture)
    if family is None:
        raise Unsupported(
            "{field} {value} is not among the {count} architectures whose memory is known",
            field="general.architecture",
            value=shown(architecture),
            count=len(FAMILIES),
        )
    return family
