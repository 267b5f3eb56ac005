"""vLLM's smaller rules: which stage holds which layers, heads of a rank, hashes of blocks."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

from app.accuracy.case import AccuracyCase, Evidence, Figure, Question, Suite, outcome_of
from app.accuracy.data import load
from app.domain.errors import DomainError
from app.domain.vllm_hashes import vllm_chain
from app.domain.vllm_prompt import LoraAdapter, MultimodalItem, PromptEmbeddings, VllmPrompt
from app.engines.vllm.heads import kv_heads_per_rank, layers_per_stage
from app.engines.vllm.versions import release
from app.web.marks import mark

VERSION = "0.33.0"
Row = Mapping[str, Any]


def _case(suite: Suite, name: str, settings: str, figure: Figure, reason: str = "") -> AccuracyCase:
    return AccuracyCase(
        suite=suite.name,
        id=name,
        engine="vllm",
        version=VERSION,
        family="",
        model=name,
        settings=settings,
        figures=(figure,),
        outcome=outcome_of([figure]),
        reason=reason,
    )


def ask_stages(row: Row) -> AccuracyCase:
    """Return one partition of layers over stages."""
    name = f"{row['L']} layers over {row['pp']} stages"
    counts = layers_per_stage(row["L"], row["pp"], release(VERSION))
    figure = Figure(
        name="layers of each stage",
        measured=" ".join(map(str, row["partition"])),
        computed=" ".join(map(str, counts)),
    )
    return _case(PARALLEL, name, "", figure)


def ask_heads(row: Row) -> AccuracyCase:
    """Return the KV heads that one rank holds; uneven ones are refused by the engine's layers."""
    heads, ranks = row["total_kv_heads"], row["tp"]
    name = f"{heads} KV heads over {ranks} ranks"
    even = row["exact_split"] or row["exact_replication"]
    measured = row["model_config_kv_heads_per_rank"] if even else "refused"
    computed: int | str
    try:
        computed = kv_heads_per_rank(heads, ranks)
    except DomainError:
        computed = "refused"
    return _case(
        PARALLEL, name, "", Figure(name="heads of a rank", measured=measured, computed=computed)
    )


# The measured prompts with vectors have 32 positions of 8 numbers: 0, 1, 2, … each over 7.
_VECTORS = (32, 8, 7)


def _embeddings() -> PromptEmbeddings:
    positions, width, divisor = _VECTORS
    values = [number / divisor for number in range(positions * width)]
    packed = struct.pack(f"<{len(values)}f", *values)
    return PromptEmbeddings(data=packed, bytes_per_position=4 * width)


def ask_hashes(row: Row) -> AccuracyCase:
    """Return one prompt's chain of block hashes."""
    prompt = VllmPrompt(
        tokens=row["tokens"],
        block_size=row["block_size"],
        algorithm=row["algo"],
        hash_seed=row["PYTHONHASHSEED"],
        lora=LoraAdapter(name=row["lora"][0], path=row["lora"][2]) if row["lora"] else None,
        multimodal=[
            MultimodalItem(identifier=identifier, offset=offset, length=length)
            for identifier, offset, length in row["mm"] or ()
        ],
        cache_salt=row["cache_salt"],
        lookahead_tokens=row["lookahead"],
        embeddings=_embeddings() if row["prompt_embeds"] else None,
    )
    computed: tuple[str, ...] = ()
    reason = ""
    try:
        computed = tuple(vllm_chain(prompt).hashes)
    except DomainError as error:
        reason = str(error)
    wanted = row["block_hashes"]
    alike = sum(one == other for one, other in zip(computed, wanted, strict=False))
    ours = alike if len(computed) == len(wanted) else f"{alike} of {len(computed)}"
    last = wanted[-1][:16] if wanted else "none"
    settings = (
        f"algorithm={row['algo']} seed={row['PYTHONHASHSEED']} block_size={row['block_size']}"
    )
    figure = Figure(name=f"hashes alike, the last {last}…", measured=len(wanted), computed=ours)
    return _case(HASHES, f"{row['id']} {row['algo']} {row['PYTHONHASHSEED']}", settings, figure,
                 reason)  # fmt: skip


def _parallel() -> list[Question]:
    loaded = load(PARALLEL.file)
    return [
        *(partial(ask_stages, row) for row in loaded["pp_partition"]),
        *(partial(ask_heads, row) for row in loaded["kv_heads_per_rank"]),
    ]


def _hashes() -> list[Question]:
    return [partial(ask_hashes, row) for row in load(HASHES.file)]


PARALLEL = Suite(
    name="vllm_parallel",
    engine="vllm",
    title=mark("Layers of vLLM's stages, heads of its ranks"),
    what=mark("What each pipeline stage and each tensor rank is given."),
    evidence=Evidence.RUN,
    file="vllm_parallel",
    questions=_parallel,
)
HASHES = Suite(
    name="vllm_hashes",
    engine="vllm",
    title=mark("vLLM's hashes of blocks"),
    what=mark("Chains for given tokens, adapters, images, salts and seeds, hash by hash."),
    evidence=Evidence.RUN,
    file="vllm_prefix_hash_cases",
    questions=_hashes,
)
