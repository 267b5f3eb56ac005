"""Requests of the engines' calls: a model, settings named as an engine's own flags, and bytes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictInt, StrictStr

from app.api.schemas import FormatName, ModelInput, PairFormat, Strict

MAX_AVAILABLE_BYTES = 2**53
MAX_SETTINGS = 100
MAX_LOG_CHARACTERS = 12 * 2**20
MAX_COMPARED_TOKENS = 2**22
MAX_WANTED_TOKENS = 2**31 - 1
MAX_WANTED_REQUESTS = 2**20

PlannedEngine = Literal["vllm", "llama_cpp", "sglang", "tensorrt_llm"]
LogEngine = Literal["vllm", "llama_cpp", "sglang", "tensorrt_llm", "ollama"]
EngineName = Literal["vllm", "llama_cpp", "sglang", "tensorrt_llm", "transformers"]
AvailableBytes = Annotated[StrictInt, Field(ge=0, le=MAX_AVAILABLE_BYTES)]
RankCount = Annotated[StrictInt, Field(ge=1, le=1024)]
EngineSettings = Annotated[dict[str, Any], Field(max_length=MAX_SETTINGS)]


class EnginePlanRequest(Strict):
    """What an engine would make of a model; `version` among the settings picks the era."""

    model: ModelInput
    settings: EngineSettings = Field(
        default_factory=dict, description="Named as the engine's own flags; see GET /engines."
    )
    available_bytes: AvailableBytes | None = Field(
        default=None, description="Memory for the cache; what it means differs, see GET /engines."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"id": "meta-llama/Llama-3.1-8B"},
                    "settings": {"max_model_len": 131072, "version": "0.33.0"},
                    "available_bytes": 42949672960,
                }
            ]
        }
    )


class SideBySideRequest(Strict):
    """One model and one budget through all engines, each in its newest known version."""

    model: ModelInput
    kv_dtype: FormatName | PairFormat | None = Field(
        default=None, description="Format of the cache; left out, each engine's own."
    )
    available_bytes: Annotated[StrictInt, Field(ge=1, le=MAX_AVAILABLE_BYTES)]
    context_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_COMPARED_TOKENS)] | None = Field(
        default=None, description="Longest request; left out, the model's own."
    )
    lengths: (
        Annotated[
            list[Annotated[StrictInt, Field(ge=1, le=MAX_COMPARED_TOKENS)]],
            Field(min_length=1, max_length=12),
        ]
        | None
    ) = Field(default=None, description="Lengths of the single requests compared.")
    tensor_parallel: RankCount = Field(
        default=1, description="Of engines that have such ranks; each has the available bytes."
    )
    pipeline_parallel: RankCount = 1
    data_parallel: RankCount = 1
    decode_context_parallel: RankCount = 1
    settings: dict[EngineName, EngineSettings] = Field(
        default_factory=dict, description="More settings, by engine; `version` picks the era."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": {"id": "google/gemma-3-27b-it"},
                    "available_bytes": 42949672960,
                    "context_tokens": 131072,
                }
            ]
        }
    )


class ExplainRequest(Strict):
    """Text pasted from an engine's start-up, and what the log does not say."""

    log: Annotated[StrictStr, Field(max_length=MAX_LOG_CHARACTERS)]
    model: ModelInput | None = Field(
        default=None,
        description="The model, where the log does not name it; an id in any spelling.",
    )
    settings: EngineSettings = Field(
        default_factory=dict,
        description="Settings that the log does not show, named as the engine's own flags.",
    )
    engine: LogEngine | None = Field(default=None, description="Where the form leaves it open.")
    want_context_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_WANTED_TOKENS)] | None = Field(
        default=None, description="The length that one wants to serve: advice says what it takes."
    )
    want_concurrency: Annotated[StrictInt, Field(ge=1, le=MAX_WANTED_REQUESTS)] | None = Field(
        default=None, description="How many requests of that length at once."
    )

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "log": "Available KV cache memory: 6.51 GiB\n"
                    "GPU KV cache size: 42,656 tokens\n"
                    "Maximum concurrency for 32,768 tokens per request: 1.30x",
                    "model": {"id": "Qwen/Qwen3-14B"},
                }
            ]
        }
    )
