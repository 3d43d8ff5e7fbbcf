"""The connector in the scheduler: what the daemon has of each request, what to load, what to store.

One lookup asks for a request's whole prefix, of all ranks; until it is answered vLLM asks again. It
begins when the request arrives, so that the answer is there when its turn comes.

Thread rule: the scheduler's thread, but for callbacks of lookups and prefetches, which touch one
queue and one flag.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from typing import Any

from kvstreamd import errors
from kvstreamd.identity import NamespaceDescription
from kvstreamd.requests import ChunkAt
from kvstreamd.vllm import keys
from kvstreamd.vllm.compat import LocalCache, Scheduled, named_blocks
from kvstreamd.vllm.fingerprint import Salts
from kvstreamd.vllm.link import Link
from kvstreamd.vllm.lookups import Lookup
from kvstreamd.vllm.metadata import ChunkBlocks, LoadJob, StepPlan, StoreJob
from kvstreamd.vllm.counters import Counters
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.tracked import Tracked

logger = logging.getLogger("vllm.kvstreamd")

# Loads of a request until it is preempted: one more than fails, for what another replica has.
_LOADS_MAX = 2


class Scheduler:
    """`ranks` workers have the KV; `loads` and `stores` say what this engine is for."""

    def __init__(self, options: Options, name: str, shape: keys.Shape, ranks: int, *,
                 loads: bool, stores: bool):
        self._options = options
        self._shape = shape
        self._ranks = ranks
        self._loads, self._stores = loads, stores
        self._counters = Counters()
        self._lost = 0
        self._link = Link(options, name, self._on_lost)
        self._salts = Salts(options.tenant)
        self._local = LocalCache()
        self._namespace: NamespaceDescription | None = None
        self._namespace_sent = False
        # Until the daemon says that it does not fetch ahead.
        self._prefetches = options.prefetch
        # Chunks of prefetches that are not counted yet.
        self._asked_ahead: deque[int] = deque()
        self._shards = 1
        self._requests: dict[str, Tracked] = {}
        self._plan = StepPlan()
        self._next_job = 1
        # By store job: its request, and the ranks that have not released it.
        self._jobs: dict[int, tuple[str, int]] = {}
        # By request: its jobs that are not released.
        self._open_jobs: Counter[str] = Counter()

    def _on_lost(self) -> None:
        self._lost += 1

    # ------------------------------------------------------------ the start

    def use(self, namespace: NamespaceDescription) -> None:
        """Names the KV; before it nothing is found or kept."""
        self._namespace = namespace
        self._shards = namespace.groups[0].shards
        self._link.want(namespace, 0)

    def bind(self, local: LocalCache) -> None:
        """Takes the engine's prefix cache, so that what it has is not fetched."""
        self._local = local

    # ------------------------------------------------------------ what to load

    def _tracked(self, request: Any) -> Tracked:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            salt = self._salts.of(request)
            hashes = len(request.block_hashes)
            if salt is not None and hashes != request.num_tokens // self._shape.hash_tokens:
                # Keys that name other tokens than their chunks' would be wrong bytes.
                logger.error("kvstreamd: request %s has %d block hashes for %d tokens, so that "
                             "it is not cached", request.request_id, hashes, request.num_tokens)
                salt = None
            if getattr(request, "resumable", False):
                # Its tokens may still change.
                salt = None
            if salt is None:
                self._counters.add("uncached_requests")
            tracked = self._requests[request.request_id] = Tracked(request, salt)
        return tracked

    def on_new_request(self, request: Any) -> None:
        """A request has come into the queue."""
        tracked = self._tracked(request)
        if self._loads and not request.skip_reading_prefix_cache:
            self._look_up(tracked)

    def _look_up(self, tracked: Tracked) -> None:
        """Begins a request's lookup, unless one runs or nothing can be found."""
        ready = self._link.ready
        chunk_keys = self._shape.keys(named_blocks(tracked.request))
        tracked.lookup = None
        if ready is None or tracked.salt is None or not chunk_keys:
            return
        self._counters.add("looked_up_tokens", len(chunk_keys) * self._shape.chunk_tokens)
        tracked.lookup = Lookup(ready, chunk_keys, tracked.salt, self._options)
        if self._prefetches:
            tracked.lookup.then(self._prefetcher(tracked))

    def _prefetcher(self, tracked: Tracked) -> Any:
        """What to do with a lookup's answer: fetch ahead what the engine has not."""
        first = 0
        hashes, lookup = tracked.request.block_hashes, tracked.lookup
        step = self._shape.chunk_tokens // self._shape.hash_tokens
        while first < len(lookup.keys) and self._local.has(hashes[(first + 1) * step - 1]):
            first += 1

        def prefetch(found: int) -> None:
            chunks = [ChunkAt(key, None, 0, shard) for key in lookup.keys[first:found]
                      for shard in range(self._shards)]
            if chunks:
                operation = lookup.ready.client.prefetch(
                    lookup.ready.namespace, chunks, salt=lookup.salt,
                    keep_ms=self._options.lease_ms)
                operation.ended.add_done_callback(self._prefetched)
                self._asked_ahead.append(len(chunks))
        return prefetch

    def _prefetched(self, ended: Any) -> None:
        if isinstance(ended.result(), errors.Unimplemented) and self._prefetches:
            self._prefetches = False
            logger.info("kvstreamd: this daemon does not fetch ahead for queued requests")

    def matched_tokens(self, request: Any, local_tokens: int) -> tuple[int | None, bool]:
        """What get_num_new_matched_tokens answers: None while the lookup runs."""
        tracked = self._tracked(request)
        tracked.local_tokens = local_tokens
        if (not self._loads or tracked.salt is None or tracked.loads >= _LOADS_MAX
                or request.skip_reading_prefix_cache):
            return 0, False
        wanted = self._shape.chunk_count(named_blocks(request))
        # What lies in the engine, or ends before the last token, needs no lookup.
        if not keys.tokens_to_load(self._shape, wanted, local_tokens, request.num_tokens):
            return 0, False
        found = self._found(tracked, wanted)
        if found is None:
            return None, False
        tokens = keys.tokens_to_load(self._shape, found, local_tokens, request.num_tokens)
        return tokens, tokens > 0

    def _found(self, tracked: Tracked, wanted: int) -> int | None:
        """Leading chunks of the `wanted` that are there under a lease; None until that is known. An
        answer that was taken too late is asked for anew, but once, so that the request runs."""
        lookup = tracked.lookup
        if lookup is None or lookup.asked < wanted:
            lookup = self._look_up_anew(tracked)
        elif lookup.found() is not None and lookup.is_stale():
            self._answered(tracked, lookup)
            if tracked.renewed:
                return 0
            tracked.renewed = True
            lookup = self._look_up_anew(tracked)
        if lookup is None:
            return 0
        found = lookup.found()
        if found is not None:
            self._answered(tracked, lookup)
            if not lookup.is_stale():
                tracked.renewed = False
        return found

    def _look_up_anew(self, tracked: Tracked) -> Lookup | None:
        self._drop_lookup(tracked)
        self._look_up(tracked)
        return tracked.lookup

    def _answered(self, tracked: Tracked, lookup: Lookup) -> None:
        """Takes note of an answer, once."""
        if lookup.counted:
            return
        lookup.counted = True
        self._counters.add("lookup_failures" if lookup.failed else "lookups")
        self._counters.add("lookup_wait_seconds", lookup.seconds)
        self._counters.add("found_tokens", lookup.present * self._shape.chunk_tokens)
        tracked.stored = lookup.present

    def _drop_lookup(self, tracked: Tracked) -> None:
        if tracked.lookup is not None:
            tracked.lookup.release()
            tracked.lookup = None

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """The engine has blocks for what `matched_tokens` said; it calls again, with 0, once they
        are loaded."""
        tracked = self._tracked(request)
        if external_tokens == 0:
            return
        block_ids = list(blocks.get_block_ids()[0])
        run = keys.plan_load(self._shape, tracked.local_tokens, external_tokens)
        assert tracked.lookup is not None and tracked.salt is not None
        per_chunk = self._shape.chunk_blocks
        chunks = [ChunkBlocks(tracked.lookup.keys[chunk],
                              block_ids[chunk * per_chunk:(chunk + 1) * per_chunk])
                  for chunk in range(run.first, run.end)]
        tracked.loads += 1
        tracked.load_first = run.first
        self._counters.add("hit_tokens", external_tokens)
        self._plan.loads.append(LoadJob(request.request_id, tracked.salt, tracked.lookup.lease_id,
                                        chunks, run.skip_blocks))
        # Its lease goes with the load; should that fail, what is there has to be asked anew.
        tracked.leased, tracked.lookup = tracked.lookup, None

    # ------------------------------------------------------------ what to store

    def plan(self, scheduled: list[tuple[Scheduled, int]], preempted: set[str]) -> StepPlan:
        """The step's plan: `scheduled` with the tokens that each request gets in it."""
        plan, self._plan = self._plan, StepPlan()
        plan.preempted = preempted
        for request_id in preempted:
            if (tracked := self._requests.get(request_id)) is not None:
                tracked.preempt()
        for entry, tokens in scheduled:
            tracked = self._requests.get(entry.request_id)
            if tracked is None:
                continue
            tracked.take_blocks(entry.blocks, entry.replaces)
            if tracked.leased is not None:
                tracked.leased.release()
                tracked.leased = None
            if self._stores and tracked.salt is not None and self._namespace is not None:
                job = self._store_job(tracked, entry.computed_tokens + tokens)
                if job is not None:
                    plan.stores.append(job)
        if (plan.loads or plan.stores) and not self._namespace_sent:
            plan.namespace, self._namespace_sent = self._namespace, True
        return plan

    def _store_job(self, tracked: Tracked, computed_tokens: int) -> StoreJob | None:
        hashes = named_blocks(tracked.request)
        first = tracked.stored
        end = keys.storable_chunks(self._shape, hashes, computed_tokens)
        per_chunk = self._shape.chunk_blocks
        end = min(end, len(tracked.blocks) // per_chunk)
        if end <= first:
            return None
        tracked.stored = end
        chunks = [ChunkBlocks(key, tracked.blocks[chunk * per_chunk:(chunk + 1) * per_chunk])
                  for chunk, key in enumerate(self._shape.keys(hashes, first, end), first)]
        after = self._shape.key(hashes, first - 1) if first else b""
        job = StoreJob(self._next_job, tracked.request.request_id, tracked.salt, after, chunks)
        self._next_job += 1
        self._jobs[job.job_id] = (job.request_id, self._ranks)
        self._open_jobs[job.request_id] += 1
        return job

    def released(self, job_ranks: dict[int, int]) -> None:
        """Ranks have released the blocks of store jobs."""
        for job_id, ranks in job_ranks.items():
            request_id, left = self._jobs[job_id]
            if left > ranks:
                self._jobs[job_id] = (request_id, left - ranks)
                continue
            del self._jobs[job_id]
            self._open_jobs[request_id] -= 1
            if not self._open_jobs[request_id]:
                del self._open_jobs[request_id]

    def load_failed(self, good_chunks: dict[str, int]) -> None:
        """Of loads only so many leading chunks were valid: the others are to be stored anew."""
        for request_id, good in good_chunks.items():
            if (tracked := self._requests.get(request_id)) is not None:
                tracked.stored = min(tracked.stored, tracked.load_first + good)

    def finished(self, request_id: str) -> bool:
        """A request has ended; whether the engine has to hold its blocks until all is released."""
        tracked = self._requests.pop(request_id, None)
        if tracked is not None:
            self._drop_lookup(tracked)
            if tracked.leased is not None:
                tracked.leased.release()
        if not self._open_jobs[request_id]:
            del self._open_jobs[request_id]
            return False
        self._plan.held.add(request_id)
        return True

    # ------------------------------------------------------------ the rest

    def reset(self) -> bool:
        """Nothing of before is found from now on, as when the weights have changed. The engine has
        emptied its own cache just before, unless requests have blocks: then that still has KV of
        before, which later requests would go on from, so that nothing is shared until a reset
        without any. Whether it was one."""
        complete = self._local.is_empty()
        if not complete:
            logger.warning("kvstreamd: the cache was reset while requests have blocks, so that "
                           "nothing is found or kept until it is reset without any")
        self._salts.reset(os.urandom(16), complete)
        for tracked in self._requests.values():
            self._drop_lookup(tracked)
            tracked.salt = None
        return complete

    def take_stats(self) -> dict[str, int | float]:
        """What was counted since the last call."""
        while self._asked_ahead:
            self._counters.add("prefetched_chunks", self._asked_ahead.popleft())
        lost, self._lost = self._lost, 0
        self._counters.add("connections_lost", lost)
        return self._counters.take()

    def close(self) -> None:
        """Ends the session."""
        self._link.close()
