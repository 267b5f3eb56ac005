"""The engine's way with a pool: full blocks are shared by lookup, and nothing is ever copied."""

from __future__ import annotations

from collections.abc import Sequence

from app.domain import pool_notes as why
from app.domain.cache_manager import CacheManager, Scheduled
from app.domain.cache_settings import CacheSettings
from app.domain.hashing import max_hit
from app.domain.pool_events import PoolEvent
from app.domain.pool_simulator import Simulator, Trace
from app.domain.vllm_prompt import LoraAdapter, VllmPrompt


class EngineSimulator(Simulator):
    """vLLM's cache manager over one layer group, one event at a time."""

    def __init__(self, settings: CacheSettings, *, preempts: bool) -> None:
        self.manager = CacheManager(settings)
        super().__init__(self.manager.pool, settings.groups[0].block_size, preempts=preempts)

    def table(self, request: str) -> tuple[int, ...]:
        """Return a request's table; block 0 stands for what a window has passed."""
        return self.manager.tables(request)[0]

    def length(self, request: str) -> int:
        """Return how many tokens a request has."""
        return len(self.manager.tokens(request))

    def _prompt(self, event: PoolEvent) -> VllmPrompt:
        adapter = event.adapter
        return VllmPrompt(
            tokens=tuple(event.tokens),
            block_size=self.block_size,
            lora=None if adapter is None else LoraAdapter(name=adapter, path=adapter),
            cache_salt=event.salt,
        )

    def allocate(self, trace: Trace, event: PoolEvent) -> None:
        """Queue a request and admit all its tokens, if their blocks fit."""
        self.manager.add(event.request, self._prompt(event))
        self._admit(trace, event.request)

    def _admit(self, trace: Trace, request: str) -> None:
        total = self.length(request)
        result = self._schedule(trace, request)
        if not result.admitted:
            trace.refuse(why.refused(result.needed_blocks, result.free_blocks))
            return
        self.admit(request)
        hits = tuple(block for block in self.table(request)[: result.hit_tokens // self.block_size])
        trace.hits = (*trace.hits, *hits)
        trace.hit_tokens += result.hit_tokens
        trace.admitted_tokens += total
        if result.hit_tokens:
            most, reason = max_hit(total, self.block_size, total // self.block_size)
            trace.notes.append(why.hit(hits, result.hit_tokens, total))
            if result.hit_tokens == most and reason.code == "hit_recomputes_last_block":
                trace.notes.append(reason)
        elif self.pool.caching:
            trace.notes.append(why.miss())
        if result.revived:
            trace.notes.append(why.revived(result.revived))
        self._note_growth(trace, request, result, 0)

    def _schedule(self, trace: Trace, request: str) -> Scheduled:
        self.manager.begin_step()
        result = self.manager.schedule(request)
        if result.dropped:
            trace.freed.extend(result.dropped)
            trace.notes.append(why.dropped(result.dropped))
        return result

    def _note_growth(self, trace: Trace, request: str, result: Scheduled, before: int) -> None:
        """Note new blocks, and those that became full after the first `before` positions."""
        trace.computed_tokens += result.computed_tokens
        trace.took(result.new_blocks[0], result.evicted)
        if not self.pool.caching:
            return
        table = self.table(request)
        start = max(before, result.hit_tokens) // self.block_size
        full = [
            block
            for block in table[start : self.length(request) // self.block_size]
            if not self.pool.is_null(block) and self.pool.is_hashed(block)
        ]
        if full:
            trace.notes.append(why.named(full))
        for block in full:
            key = self.pool.key_of(block)
            first = None if key is None else self.pool.find(key)
            if first is not None and first != block:
                trace.notes.append(why.duplicate(block, first))

    def grow(self, trace: Trace, request: str, tokens: Sequence[int]) -> int | None:
        """Compute more tokens of a running request; return the blocks wanted if they do not fit."""
        before = self.length(request)
        self.manager.append(request, tokens)
        result = self._schedule(trace, request)
        if not result.admitted:
            self.manager.withdraw(request, len(tokens))
            return result.needed_blocks
        if before % self.block_size:
            trace.notes.append(why.in_place(self.table(request)[before // self.block_size]))
        self._note_growth(trace, request, result, before)
        return None

    def keep_tokens(self, request: str, tokens: Sequence[int]) -> None:
        """Add tokens to a request that waits."""
        self.manager.append(request, tokens)

    def fork(self, trace: Trace, parent: str, child: str) -> None:
        """Queue the child as a new request with the parent's tokens."""
        trace.notes.append(why.forked_by_lookup(child))
        self.manager.fork(parent, child)
        self._admit(trace, child)

    def look_up(self, trace: Trace, event: PoolEvent) -> None:
        """Say what tokens would find."""
        hit = self.manager.probe(self._prompt(event))
        trace.hits = hit.tables[0]
        trace.hit_tokens = hit.tokens
        trace.notes.append(why.looked_up(trace.hits, hit.tokens, len(event.tokens)))

    def resume(self, trace: Trace, request: str) -> None:
        """Try a waiting request again; what is still cached is hit."""
        self._admit(trace, request)

    def give_back(self, request: str, *, forget: bool) -> tuple[int, ...]:
        """Release a request's blocks, its tail first."""
        return self.manager.free(request) if forget else self.manager.preempt(request)
