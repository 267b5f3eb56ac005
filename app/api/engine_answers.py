"""The shape of each engine's plan as JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from app.api.answers import Answer, NoteAnswer


class SpentAnswer(Answer):
    """Bytes beyond what the model needs, and on what they go."""

    code: str
    bytes: int
    bytes_text: str
    text: str


class RequestCostAnswer(Answer):
    """What one request takes: a part that any request has, parts that saturate, and a slope."""

    fixed_bytes: int
    saturating_bytes: int = Field(description="What the parts that stop growing take when full.")
    slope_bytes: int
    slope_tokens: int = Field(description="slope_bytes are added by every so many tokens.")
    holds_from_tokens: int = Field(
        description="From this length on a request takes these parts, begun blocks whole."
    )


class PlanAnswer(Answer):
    """What every engine's plan carries."""

    version: str
    formula: str = Field(description="The expression with this request's numbers in it.")
    formulas: list[str]
    printed: list[str] = Field(description="The lines as that version prints them.")
    spent: list[SpentAnswer]
    request: RequestCostAnswer
    assumptions: list[NoteAnswer]
    not_counted: list[NoteAnswer]


class VllmGroupAnswer(Answer):
    """Layers that share one block table."""

    kind: str
    layers: int
    block_size: int
    page_size_bytes: int = Field(description="One block in one layer; in all, of mixed pages.")
    blocks_per_request: int
    kv_heads: int | None
    k_dim: int | None
    v_dim: int | None
    window: int | None
    layer_names: list[str]


class VllmRankAnswer(Answer):
    """One pipeline stage; each of its tensor ranks holds the same bytes."""

    pipeline_rank: int
    tensor_ranks: int
    layers: list[int] = Field(description="First and last decoder layer.")
    caches: int
    bytes_per_block: int
    available_bytes: int | None
    own_blocks: int | None = Field(description="What its memory would give; the pool is the least.")
    allocated_bytes: int | None
    unused_bytes: int | None
    needed_bytes: int


class VllmPlanAnswer(PlanAnswer):
    """vLLM's groups, blocks, concurrency and tokens."""

    engine: Literal["vllm"] = "vllm"
    kv_cache_dtype: str
    block_size: int
    max_model_len: int
    groups: list[VllmGroupAnswer]
    ranks: list[VllmRankAnswer]
    num_gpu_blocks: int | None
    blocks_per_request: int | None
    max_concurrency: float | None
    max_concurrency_exact: str | None
    max_concurrency_text: str | None
    kv_cache_tokens: int | None
    needed_bytes: int
    needed_bytes_text: str
    estimated_max_model_len: int | None
    refused: bool
    max_sequences: int | None
    request_total_bytes: int = Field(description="One request of max_model_len tokens, one rank.")
    request_need_bytes: int = Field(description="What of it the model itself needs.")
    replicated_bytes: int


class LlamaCppCacheAnswer(Answer):
    """One cache as allocated; cells are per stream, bytes for all streams."""

    name: str
    layers: int
    cells: int
    streams: int
    k_type: str
    v_type: str | None
    k_bytes: int
    v_bytes: int
    bytes: int
    bytes_text: str
    window: int | None


class LlamaCppRecurrentAnswer(Answer):
    """The states of constant size."""

    layers: int
    rows: int
    parts: dict[str, int]
    bytes: int


class LlamaCppDeviceAnswer(Answer):
    """What one device holds of one cache."""

    device: str
    cache: str
    layers: int
    bytes: int
    buffer_bytes: int


class LlamaCppPlanAnswer(PlanAnswer):
    """llama.cpp's caches and states, allocated whole when the context is made."""

    engine: Literal["llama_cpp"] = "llama_cpp"
    runner: str
    n_ctx: int
    n_ctx_seq: int
    n_seq_max: int
    kv_unified: bool
    n_batch: int
    n_ubatch: int
    caches: list[LlamaCppCacheAnswer]
    recurrent: LlamaCppRecurrentAnswer | None
    total_bytes: int
    total_bytes_text: str
    devices: list[LlamaCppDeviceAnswer]
    needed_bytes: int | None
    fits: bool | None
    largest_n_ctx: int | None


class SglangPoolAnswer(Answer):
    """One pool of a rank: its tokens, rows with the spare page, bytes by tensor kind."""

    name: str
    layers: int
    tokens: int
    rows: int
    row_bytes: int
    parts: dict[str, int]
    bytes: int


class SglangPlanAnswer(PlanAnswer):
    """SGLang's pools on the smallest rank."""

    engine: Literal["sglang"] = "sglang"
    tokens: int
    window_tokens: int | None
    state_slots: int | None
    page_size: int
    cell_bytes: int
    budget_bytes: int | None
    pools: list[SglangPoolAnswer]
    pool_bytes: int
    pool_bytes_text: str
    context_tokens: int | None
    max_concurrency_text: str | None


class TensorrtLlmPoolAnswer(Answer):
    """The blocks of the layers that share one window."""

    name: str
    layers: int
    window_tokens: int | None
    bytes_per_token: int
    blocks: int
    blocks_per_sequence: int | None
    bytes: int


class TensorrtLlmPlanAnswer(PlanAnswer):
    """TensorRT-LLM's pools on the smallest rank."""

    engine: Literal["tensorrt_llm"] = "tensorrt_llm"
    tokens: int
    blocks: int
    tokens_per_block: int
    bytes_per_token: int
    budget_bytes: int | None
    pools: list[TensorrtLlmPoolAnswer]
    pool_bytes: int
    pool_bytes_text: str
    state_bytes: int
    secondary_blocks: int
    context_tokens: int | None
    max_concurrency_text: str | None
