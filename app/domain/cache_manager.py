"""Block tables of many requests over one pool, one table per layer group and request.

A step of a request goes as in the engine: look up what is cached (a new request only), free what
its groups have passed, see whether the blocks fit, take over the hits, allocate the rest, and name
what is now full. Source: vLLM 0.33.0 v1/core/kv_cache_manager.py; measured:
tests/data/vllm_kv_cache_manager_scenarios.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.domain.cache_lookup import Hit, Lookup, longest_hit, merge_alike
from app.domain.cache_settings import CacheSettings
from app.domain.cache_tables import Demand, GroupTables, NamedTokens, tables_for
from app.domain.checks import checked_int
from app.domain.errors import Conflict, Unknown, Unsupported, shown
from app.domain.hashing import MAX_PROMPT_TOKENS, checked_tokens
from app.domain.pool import BlockPool
from app.domain.vllm_hashes import vllm_chain
from app.domain.vllm_prompt import VllmPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """What one step of one request did; `tables` and `new_blocks` have one row per group.

    When it is not `admitted` nothing was taken: `needed_blocks` were wanted, `free_blocks` were
    there. `dropped` blocks went out of sight, `evicted` ones lost their cached content to this
    step, `revived` ones were free and are hit.
    """

    admitted: bool
    hit_tokens: int
    computed_tokens: int
    new_blocks: tuple[tuple[int, ...], ...]
    tables: tuple[tuple[int, ...], ...]
    dropped: tuple[int, ...]
    evicted: tuple[int, ...]
    revived: tuple[int, ...]
    needed_blocks: int
    free_blocks: int


class _Request:
    """A request's tokens, the hashes of its full blocks, and how far it has been computed."""

    def __init__(self, prompt: VllmPrompt, hash_size: int, hashes: tuple[str, ...] = ()) -> None:
        self.prompt = prompt
        self.hash_size = hash_size
        self.tokens = list(prompt.tokens)
        self.prompt_tokens = len(self.tokens)
        self.computed = 0
        self.running = False
        self.hashes = hashes
        self.rehash()

    def rehash(self) -> None:
        """Hash the full blocks that the tokens now make."""
        done = len(self.hashes) * self.hash_size
        if len(self.tokens) - self.prompt.lookahead_tokens < done + self.hash_size:
            return
        if self.hashes and not self.prompt.multimodal:
            # The rest of a chain is a chain that starts from the last hash. A salt is in block 0
            # alone; items are placed by position, so that a chain with them is computed anew.
            rest = replace(
                self.prompt,
                tokens=tuple(self.tokens[done:]),
                block_size=self.hash_size,
                hash_seed=None,
                none_hash=self.hashes[-1],
                cache_salt=None,
            )
            self.hashes = (*self.hashes, *vllm_chain(rest).hashes)
            return
        whole = replace(self.prompt, tokens=tuple(self.tokens), block_size=self.hash_size)
        self.hashes = vllm_chain(whole).hashes


class CacheManager:
    """Admits requests' tokens into a pool's blocks, and gives the blocks back."""

    def __init__(self, settings: CacheSettings) -> None:
        """Start with an empty pool; raises as CacheSettings and BlockPool do."""
        self.settings = settings
        self.pool = BlockPool(settings.num_blocks, rules=settings.rules, caching=settings.caching)
        self._requests: dict[str, _Request] = {}
        specs = list(settings.groups)
        for alike in merge_alike(specs):
            for group in alike.groups:
                specs[group] = alike.spec
        self._specs = tuple(specs)
        self._groups: tuple[GroupTables, ...] = tuple(
            tables_for(spec, group, self.pool, settings.scheduler_block_size)
            for group, spec in enumerate(specs)
        )

    def add(self, request: str, prompt: VllmPrompt) -> None:
        """Queue a request; its tokens take no blocks before they are scheduled.

        The prompt's block size is that of the groups, whatever it says itself.

        Raises:
            Conflict: when a request of this name is there.
            Unsupported: for a prompt that is given as vectors.

        """
        if prompt.embeddings is not None:
            raise Unsupported(
                "{field} are not modelled in block tables; give token ids", field="embeddings"
            )
        self._enter(request, _Request(prompt, self.settings.hash_block_size))

    def _enter(self, request: str, held: _Request) -> None:
        if request in self._requests:
            raise Conflict("{field} {name} is already there", field="request", name=shown(request))
        self._requests[request] = held

    def append(self, request: str, tokens: Sequence[int]) -> None:
        """Add tokens to a request's end; they take no blocks before they are scheduled."""
        held = self._request(request)
        more = checked_tokens(tokens)
        checked_int(len(held.tokens) + len(more), "tokens", low=0, high=MAX_PROMPT_TOKENS)
        held.tokens.extend(more)
        held.rehash()

    def fork(self, request: str, child: str) -> None:
        """Queue a request with the tokens of another; it shares what a lookup finds, no more.

        Raises:
            Conflict: when a request of this name is there.

        """
        parent = self._request(request)
        prompt = replace(parent.prompt, tokens=tuple(parent.tokens))
        # Equal tokens have equal hashes, so that the parent's are taken over.
        self._enter(child, _Request(prompt, parent.hash_size, parent.hashes))

    def withdraw(self, request: str, count: int) -> None:
        """Take back the last tokens of a request that are not computed yet."""
        held = self._request(request)
        checked_int(count, "count", low=0, high=len(held.tokens) - held.computed)
        del held.tokens[len(held.tokens) - count :]
        full = max(len(held.tokens) - held.prompt.lookahead_tokens, 0) // held.hash_size
        held.hashes = held.hashes[:full]

    def tables(self, request: str) -> tuple[tuple[int, ...], ...]:
        """Return a request's block ids, one row per group; block 0 stands for what was dropped."""
        self._request(request)
        return tuple(tuple(group.rows.get(request, ())) for group in self._groups)

    def tokens(self, request: str) -> tuple[int, ...]:
        """Return a request's tokens."""
        return tuple(self._request(request).tokens)

    def hashes(self, request: str) -> tuple[str, ...]:
        """Return the hashes of a request's full blocks."""
        return self._request(request).hashes

    def computed(self, request: str) -> int:
        """Return how many of a request's positions are computed."""
        return self._request(request).computed

    def lookup(self, request: str) -> Hit:
        """Return what a new request would hit: cached blocks before its last position."""
        return self._lookup(self._request(request))

    def probe(self, prompt: VllmPrompt) -> Hit:
        """Return what a prompt would hit, without queueing it."""
        return self._lookup(_Request(prompt, self.settings.hash_block_size))

    def _lookup(self, held: _Request) -> Hit:
        if not self.settings.caching:
            return self._no_hit()
        lookup = Lookup(
            pool=self.pool,
            hashes=held.hashes,
            hash_size=self.settings.hash_block_size,
            alignment=self.settings.scheduler_block_size,
        )
        return longest_hit(lookup, self._specs, max(len(held.tokens) - 1, 0))

    def schedule(
        self,
        request: str,
        new_tokens: int | None = None,
        *,
        lookahead_tokens: int = 0,
        whole_must_fit: bool = False,
        in_flight_tokens: int = 0,
    ) -> Scheduled:
        """Compute the next tokens of a request, if their blocks fit.

        `new_tokens` None means all that are left after the hit. `lookahead_tokens` also get slots
        (a drafter's guesses); `whole_must_fit` admits a request only if all its tokens would fit
        now; `in_flight_tokens` are computed but not settled: their windows are not yet freed.

        Raises:
            Unknown: for a request that is not there.
            OutOfRange, WrongType: when so many tokens are not left.

        """
        held = self._request(request)
        free_blocks = self.pool.free_blocks
        hit = self._no_hit() if held.running else self.lookup(request)
        done = held.computed + hit.tokens
        left = len(held.tokens) - done
        if not left:
            raise Conflict(
                "{field} {name} has no token left to compute", field="request", name=shown(request)
            )
        count = left if new_tokens is None else new_tokens
        checked_int(count, "new_tokens", low=1, high=left)
        reserve = 0 if held.running else self.settings.watermark_blocks
        if whole_must_fit:
            whole = min(len(held.tokens), self.settings.max_model_len)
            needed = reserve + self._needed(
                request, self._demands(hit, done, slots=whole, real_slots=whole, capped=True)
            )
            if needed > self.pool.free_blocks:
                return self._refused(request, hit, needed, free_blocks)
        # What is out of sight is freed even when the step does not fit.
        dropped = [
            block
            for group in self._groups
            for block in group.drop_skipped(request, max(done - in_flight_tokens, 0))
        ]
        slots = min(done + count + lookahead_tokens, self.settings.max_model_len)
        demands = self._demands(hit, done, slots=slots, real_slots=done + count)
        needed = reserve + self._needed(request, demands)
        if needed > self.pool.free_blocks:
            return self._refused(request, hit, needed, free_blocks, dropped)
        revived = self._adopt(request, held, hit, done)
        gained = [
            group.extend(request, demand)
            for group, demand in zip(self._groups, demands, strict=True)
        ]
        held.running = True
        held.computed = done + count
        self._name(request, held)
        return Scheduled(
            admitted=True,
            hit_tokens=hit.tokens,
            computed_tokens=count,
            new_blocks=tuple(new for new, _ in gained),
            tables=self.tables(request),
            dropped=tuple(dropped),
            evicted=tuple(block for _, evicted in gained for block in evicted),
            revived=revived,
            needed_blocks=needed,
            free_blocks=free_blocks,
        )

    def _no_hit(self) -> Hit:
        return Hit(tables=((),) * len(self._groups), tokens=0)

    def _demands(
        self, hit: Hit, done: int, *, slots: int, real_slots: int, capped: bool = False
    ) -> list[Demand]:
        longest = self.settings.max_model_len
        in_flight = self.settings.in_flight_tokens or longest
        return [
            Demand(
                slots=slots,
                real_slots=real_slots,
                done=done,
                hit=blocks,
                most_blocks=spec.most_blocks(in_flight, longest) if capped else None,
            )
            for spec, blocks in zip(self._specs, hit.tables, strict=True)
        ]

    def _needed(self, request: str, demands: list[Demand]) -> int:
        return sum(
            group.needed(request, demand)
            for group, demand in zip(self._groups, demands, strict=True)
        )

    def _adopt(self, request: str, held: _Request, hit: Hit, done: int) -> tuple[int, ...]:
        if held.running or not any(hit.tables):
            return ()
        return tuple(
            block
            for group, blocks in zip(self._groups, hit.tables, strict=True)
            for block in group.adopt(request, blocks, done)
        )

    def _name(self, request: str, held: _Request) -> None:
        if not self.settings.caching:
            return
        for group in self._groups:
            group.name(
                request,
                NamedTokens(
                    hashes=held.hashes,
                    hash_size=self.settings.hash_block_size,
                    tokens=self._nameable(group, held.computed),
                    prompt_tokens=held.prompt_tokens,
                    resume_at=self._resume_at(held),
                ),
            )

    def _resume_at(self, held: _Request) -> int:
        """Return where a hit of the same prompt, sent again, would end."""
        size = self.settings.hash_block_size
        if any(spec.drops_last_block for spec in self._specs):
            return held.prompt_tokens // size * size - size
        return (held.prompt_tokens - max(held.prompt.lookahead_tokens, 1)) // size * size

    def _nameable(self, group: GroupTables, tokens: int) -> int:
        """Return the prefix of which a later hit can use any: it ends where hits may end.

        A group that gives up its last block to a drafter is matched one block further.
        """
        if len(self._groups) == 1:
            return tokens
        aligned = tokens - tokens % self.settings.scheduler_block_size
        if group.spec.drops_last_block and aligned:
            return min(tokens, aligned + group.spec.block_size)
        return aligned

    def _refused(
        self,
        request: str,
        hit: Hit,
        needed: int,
        free_blocks: int,
        dropped: Sequence[int] = (),
    ) -> Scheduled:
        return Scheduled(
            admitted=False,
            hit_tokens=hit.tokens,
            computed_tokens=0,
            new_blocks=(),
            tables=self.tables(request),
            dropped=tuple(dropped),
            evicted=(),
            revived=(),
            needed_blocks=needed,
            free_blocks=free_blocks,
        )

    def free(self, request: str) -> tuple[int, ...]:
        """End a request; return the blocks that nobody holds any more."""
        freed = self._release(request)
        del self._requests[request]
        return freed

    def preempt(self, request: str) -> tuple[int, ...]:
        """Take a request's blocks and let it wait; scheduled again, it is computed anew."""
        freed = self._release(request)
        held = self._requests[request]
        held.running = False
        held.computed = 0
        return freed

    def _release(self, request: str) -> tuple[int, ...]:
        self._request(request)
        return tuple(
            block for group in self._groups for block in self.pool.release(group.take_away(request))
        )

    def begin_step(self) -> None:
        """Begin a scheduling pass: what the last one computed can now be resumed from."""
        for group in self._groups:
            group.begin_step()

    def _request(self, request: str) -> _Request:
        try:
            return self._requests[request]
        except KeyError:
            raise Unknown(
                "{field} {name} is not there", field="request", name=shown(request)
            ) from None
