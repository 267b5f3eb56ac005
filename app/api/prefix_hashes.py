"""`/prefix-hashes`: the chained hashes of a prompt's full blocks, and two prompts compared."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import Field

from app.api import prefix_hashes_schemas as s
from app.api.answers import Answer, NoteAnswer, notes_answer
from app.api.problems import REFUSED
from app.api.routing import JsonRoute
from app.domain.errors import Conflict, DomainError, Malformed
from app.domain.hashing import HashChain, textbook_chain
from app.domain.vllm_prompt import (
    NEWEST_RELEASE,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    VllmPrompt,
)

if TYPE_CHECKING:
    from app.domain.hash_compare import ChainComparison

router = APIRouter(tags=["blocks"], responses=REFUSED, route_class=JsonRoute)

# What only one of the schemes takes; given to the other it would be passed over in silence.
_VLLM_SETTINGS = (
    "algorithm", "hash_seed", "none_hash", "lookahead_tokens", "drops_last_block", "version",
)  # fmt: skip
_VLLM_PARTS = ("lora", "multimodal", "cache_salt", "embeddings")


class PartAnswer(Answer):
    """One thing beside tokens and parent that a hash covers."""

    kind: str
    value: str


class BlockAnswer(Answer):
    """One full block, and the inputs of its hash beside its tokens."""

    index: int
    first_token: int = Field(description="Position of its first token.")
    hash: str
    parent: str = Field(description="The hash before it; empty where the chain begins.")
    parts: list[PartAnswer]


class ChainAnswer(Answer):
    """The hashes of one prompt, and how much of it a lookup may reuse at most."""

    prompt_tokens: int
    hashes: list[str] = Field(description="In hexadecimal, one a full block.")
    tail_tokens: int = Field(description="Positions that no hash covers.")
    max_hit_tokens: int
    max_hit_reason: NoteAnswer
    seed_hash: str = Field(description="Parent of block 0; empty in the textbook scheme.")
    blocks: list[BlockAnswer] = Field(description="A page of the blocks.")


class ComparedAnswer(Answer):
    """One block of both prompts; a hash is empty where that prompt has no full block."""

    index: int
    first_hash: str
    second_hash: str
    matches: bool
    reasons: list[NoteAnswer]


class ComparisonAnswer(Answer):
    """What the second prompt could reuse of the first one's blocks."""

    matched_blocks: int
    matched_tokens: int
    breaks_at: int | None = Field(description="The first block that does not match.")
    hit_tokens: int
    hit_reason: NoteAnswer
    blocks: list[ComparedAnswer] = Field(description="A page of the blocks.")


class PrefixHashesAnswer(ChainAnswer):
    """A prompt's hashes; with a second prompt, its hashes and the comparison."""

    scheme: str
    algorithm: str | None
    version: str | None
    block_size: int
    compare_with: ChainAnswer | None = None
    comparison: ComparisonAnswer | None = None
    assumptions: list[NoteAnswer]
    not_counted: list[NoteAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedHashes:
    """A request's chains as domain values."""

    first: HashChain
    second: HashChain | None
    comparison: ChainComparison | None


def _is_given(value: object) -> bool:
    return value == "" or bool(value)


def _refuse_other_scheme(request: s.PrefixHashesRequest, prompt: s.PromptInput) -> None:
    """Refuse what the scheme does not hash.

    Raises:
        Conflict: naming the field.

    """
    if request.scheme == "vllm":
        wrong = ["identity"] if prompt.identity is not None else []
        other = "textbook"
    else:
        wrong = [name for name in _VLLM_PARTS if _is_given(getattr(prompt, name))]
        wrong += [name for name in _VLLM_SETTINGS if _is_given(getattr(request, name))]
        other = "vllm"
    if wrong:
        raise Conflict(
            "{field} belongs to the scheme {other}, not to {scheme}",
            field=wrong[0],
            other=other,
            scheme=request.scheme,
        )


def _embeddings(given: s.EmbeddingsInput | None) -> PromptEmbeddings | None:
    if given is None:
        return None
    try:
        data = base64.b64decode(given.data, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("{field} is not base64", field=("embeddings", "data")) from None
    return PromptEmbeddings(data=data, bytes_per_position=given.bytes_per_position)


def _adapter(given: s.LoraInput | None) -> LoraAdapter | None:
    if given is None:
        return None
    return LoraAdapter(name=given.name, path=given.path, int_id=given.int_id)


def _chain(request: s.PrefixHashesRequest, prompt: s.PromptInput) -> HashChain:
    from app.domain.vllm_hashes import vllm_chain

    _refuse_other_scheme(request, prompt)
    if request.scheme == "textbook":
        return textbook_chain(prompt.tokens, request.block_size, prompt.identity or {})
    return vllm_chain(
        VllmPrompt(
            tokens=prompt.tokens,
            block_size=request.block_size,
            algorithm=request.algorithm or "sha256",
            hash_seed=request.hash_seed,
            none_hash=request.none_hash,
            lora=_adapter(prompt.lora),
            multimodal=[
                MultimodalItem(identifier=item.identifier, offset=item.offset, length=item.length)
                for item in prompt.multimodal
            ],
            cache_salt=prompt.cache_salt,
            embeddings=_embeddings(prompt.embeddings),
            lookahead_tokens=request.lookahead_tokens,
            drops_last_block=request.drops_last_block,
            version=request.version or NEWEST_RELEASE,
        )
    )


def compute_hashes(request: s.PrefixHashesRequest) -> ComputedHashes:
    """Return a request's chains; raises a DomainError that names the field."""
    from app.domain.hash_compare import compare_chains

    first = _chain(request, request)
    if request.compare_with is None:
        return ComputedHashes(first=first, second=None, comparison=None)
    try:
        second = _chain(request, request.compare_with)
    except DomainError as error:
        raise error.under("compare_with") from None
    return ComputedHashes(first=first, second=second, comparison=compare_chains(first, second))


def _blocks(chain: HashChain, offset: int, limit: int) -> list[BlockAnswer]:
    return [
        BlockAnswer(
            index=block.index,
            first_token=block.index * chain.block_size,
            hash=block.hash,
            parent=block.parent,
            parts=[PartAnswer(kind=part.kind, value=part.value) for part in block.parts],
        )
        for block in chain.blocks[offset : offset + limit]
    ]


def _reason(chain: HashChain) -> NoteAnswer:
    return notes_answer((chain.max_hit_reason,))[0]


def _chain_answer(chain: HashChain, offset: int, limit: int) -> ChainAnswer:
    return ChainAnswer(
        prompt_tokens=chain.prompt_tokens,
        hashes=list(chain.hashes),
        tail_tokens=chain.tail_tokens,
        max_hit_tokens=chain.max_hit_tokens,
        max_hit_reason=_reason(chain),
        seed_hash=chain.seed_hash,
        blocks=_blocks(chain, offset, limit),
    )


def _comparison(comparison: ChainComparison, offset: int, limit: int) -> ComparisonAnswer:
    return ComparisonAnswer(
        matched_blocks=comparison.matched_blocks,
        matched_tokens=comparison.matched_tokens,
        breaks_at=comparison.breaks_at,
        hit_tokens=comparison.hit_tokens,
        hit_reason=notes_answer((comparison.hit_reason,))[0],
        blocks=[
            ComparedAnswer(
                index=block.index,
                first_hash=block.first_hash,
                second_hash=block.second_hash,
                matches=block.matches,
                reasons=notes_answer(block.reasons),
            )
            for block in comparison.blocks[offset : offset + limit]
        ],
    )


def hashes_answer(request: s.PrefixHashesRequest, computed: ComputedHashes) -> PrefixHashesAnswer:
    """Return the answer of `/prefix-hashes` from its domain values."""
    first, second = computed.first, computed.second
    settings = dict(first.settings)
    page = (request.offset, request.limit)
    own = _chain_answer(first, *page)
    return PrefixHashesAnswer(
        **{name: getattr(own, name) for name in ChainAnswer.model_fields},
        scheme=first.scheme,
        algorithm=settings.get("algorithm"),
        version=settings.get("version"),
        block_size=first.block_size,
        compare_with=None if second is None else _chain_answer(second, *page),
        comparison=computed.comparison and _comparison(computed.comparison, *page),
        assumptions=notes_answer(first.assumptions),
        not_counted=notes_answer(first.not_counted),
    )


def answer_hashes(request: s.PrefixHashesRequest) -> PrefixHashesAnswer:
    """Return the answer of `/prefix-hashes`."""
    return hashes_answer(request, compute_hashes(request))


# Not async: a long prompt in small blocks takes longer than the event loop should wait.
@router.post("/prefix-hashes", summary="Chained hashes of a prompt's full blocks")
def prefix_hashes(request: s.PrefixHashesRequest) -> PrefixHashesAnswer:
    """Return one hash a full block, what a lookup may reuse, and where two prompts part."""
    return answer_hashes(request)
