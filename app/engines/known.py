"""Which engines are planned, in which versions, with which settings, and from what was read."""

from __future__ import annotations

from dataclasses import dataclass

from app.engines.llama_cpp import settings as llama_cpp
from app.engines.llama_cpp import versions as llama_cpp_versions
from app.engines.sglang import settings as sglang
from app.engines.tensorrt_llm import settings as tensorrt_llm
from app.engines.transformers.settings import KNOWN as TRANSFORMERS_SETTINGS
from app.engines.transformers.settings import VERSION as TRANSFORMERS_VERSION
from app.engines.vllm.settings import ALIASES as VLLM_ALIASES
from app.engines.vllm.settings import NAMES as VLLM_SETTINGS
from app.engines.vllm.versions import KNOWN_RELEASES


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEngine:
    """One engine: `versions` are all that are known, or the ends of the range that is."""

    name: str
    title: str
    newest: str
    versions: tuple[str, ...]
    version_form: str
    settings: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...]
    memory: str
    source_url: str


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


ENGINES: tuple[KnownEngine, ...] = (
    KnownEngine(
        name="vllm",
        title="vLLM",
        newest=KNOWN_RELEASES[-1],
        versions=KNOWN_RELEASES,
        version_form="a release, such as 0.20.1",
        settings=tuple(sorted(VLLM_SETTINGS)),
        aliases=tuple(sorted(VLLM_ALIASES.items())),
        memory="left for the cache on each worker, as its log says: Available KV cache memory",
        source_url="https://github.com/vllm-project/vllm",
    ),
    KnownEngine(
        name="llama_cpp",
        title="llama.cpp",
        newest=llama_cpp_versions.NEWEST.isoformat(),
        versions=(
            llama_cpp_versions.FIRST.isoformat(),
            llama_cpp_versions.NEWEST.isoformat(),
        ),
        version_form="a day such as 2026-10-01, a build such as b6840, or a known commit",
        settings=tuple(sorted(llama_cpp.KNOWN)),
        aliases=tuple(sorted(llama_cpp.ALIASES.items())),
        memory="on all devices together, for the context's caches and states",
        source_url="https://github.com/ggml-org/llama.cpp",
    ),
    KnownEngine(
        name="sglang",
        title="SGLang",
        newest=_dotted(sglang.NEWEST),
        versions=(_dotted(sglang.OLDEST), _dotted(sglang.NEWEST)),
        version_form="a release, such as 0.5.10",
        settings=tuple(sorted(sglang.KNOWN)),
        aliases=tuple(sorted(sglang.ALIASES.items())),
        memory="left to the pools of each rank, after weights and what must stay free",
        source_url="https://github.com/sgl-project/sglang",
    ),
    KnownEngine(
        name="tensorrt_llm",
        title="TensorRT-LLM",
        newest=_dotted(tensorrt_llm.NEWEST),
        versions=(_dotted(tensorrt_llm.OLDEST), _dotted(tensorrt_llm.NEWEST)),
        version_form="a release, such as 1.2.0",
        settings=tuple(sorted(tensorrt_llm.KNOWN)),
        aliases=tuple(sorted(tensorrt_llm.ALIASES.items())),
        memory="free on each rank after the load; the pools take free_gpu_memory_fraction of it",
        source_url="https://github.com/NVIDIA/TensorRT-LLM",
    ),
    KnownEngine(
        name="transformers",
        title="Transformers",
        newest=TRANSFORMERS_VERSION,
        versions=(TRANSFORMERS_VERSION,),
        version_form="a release",
        settings=tuple(sorted(TRANSFORMERS_SETTINGS)),
        aliases=(),
        memory="not asked: its caches grow as a run does",
        source_url="https://github.com/huggingface/transformers",
    ),
)
