"""A worker's stores: whole chunks that a step has completed, and when their blocks are free.

On the CPU, and where the daemon does not reach the GPU's memory, the bytes are copied into slots
before the step ends, so that the blocks are free at once. Else the daemon reads them in place, and
they are in use until it says `released`. What has no room is dropped: a later miss.

Thread rule: the engine's thread alone, but for what StreamOrder runs. Ownership: slots, until the
daemon has released them.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import threading
import time
from collections.abc import Collection

from kvstreamd.errors import Code
from kvstreamd.operations import StoreOperation
from kvstreamd.requests import ChunkAt
from kvstreamd.vllm.link import Ready
from kvstreamd.vllm.metadata import StoreJob
from kvstreamd.vllm.counters import Counters
from kvstreamd.vllm.mover import Mover
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.order import StreamOrder

logger = logging.getLogger("vllm.kvstreamd")

# Beyond an operation's deadline the daemon has this long to say that it is over.
_GRACE_S = 30.0


@dataclasses.dataclass
class _Store:
    job: StoreJob
    chunks: list[ChunkAt]
    slots: list[int]
    # Set once it has begun, or could not: then there is no operation, and nothing is in use.
    begun: threading.Event = dataclasses.field(default_factory=threading.Event)
    operation: StoreOperation | None = None

    def released(self) -> bool:
        """Whether its source memory is free."""
        return self.begun.is_set() and (self.operation is None or self.operation.released.done())


class Stores:
    """Stores of the shard of this rank."""

    def __init__(self, mover: Mover, shard: int, options: Options, counters: Counters,
                 order: StreamOrder):
        self._mover = mover
        self._shard = shard
        self._options = options
        self._counters = counters
        self._order = order
        self._running: list[_Store] = []
        # Jobs whose blocks are free since the last report.
        self._ended: list[int] = []

    def begin(self, jobs: list[StoreJob], ready: Ready | None) -> None:
        """Begins a step's stores, after the forward pass that completes their chunks."""
        for job in jobs:
            store = self._prepared(job) if ready is not None else None
            if store is None or not store.chunks:
                self._counters.add("dropped_chunks", len(job.chunks))
                self._ended.append(job.job_id)
                continue
            self._counters.add("dropped_chunks", len(job.chunks) - len(store.chunks))
            self._running.append(store)
            if store.slots:
                self._ended.append(job.job_id)
            self._order.after_forward(lambda store=store: self._start(ready, store))

    def _prepared(self, job: StoreJob) -> _Store:
        """The chunks of the job that have room, up to the first that has none: the others could
        not be reached without it."""
        store = _Store(job, [], [])
        for key, blocks in job.chunks:
            place = self._mover.direct(blocks)
            if place is None:
                slot = self._mover.store_slots.take()
                if slot is None:
                    break
                self._mover.layout.gather(blocks, self._mover.store_slots.bytes_of(slot))
                store.slots.append(slot)
                place = self._mover.store_slots.place(slot)
            store.chunks.append(ChunkAt(key, place, 0, self._shard))
        return store

    def _start(self, ready: Ready, store: _Store) -> None:
        options = self._options
        try:
            store.operation = ready.client.store(
                ready.namespace, store.chunks, salt=store.job.salt,
                deadline_ms=options.store_deadline_ms, admission_ms=options.store_admission_ms,
                after_prefix_hash=store.job.after)
        except Exception as error:  # Of whatever kind: blocks would be held for good.
            logger.warning("kvstreamd: %d chunks are not stored: %s", len(store.chunks), error)
        store.begun.set()

    def collect(self) -> list[int]:
        """The numbers of the jobs whose blocks are free since the last call."""
        running = []
        for store in self._running:
            if store.released():
                self._end(store)
            else:
                running.append(store)
        self._running = running
        ended, self._ended = self._ended, []
        return ended

    def _end(self, store: _Store) -> None:
        for slot in store.slots:
            self._mover.store_slots.give(slot)
        if not store.slots:
            self._ended.append(store.job.job_id)
        results = store.operation.released.result(0) if store.operation is not None else []
        kept = sum(result.code == Code.OK and not result.existed for result in results)
        existed = sum(result.code == Code.OK and result.existed for result in results)
        self._counters.add("stored_chunks", kept)
        self._counters.add("stored_bytes", kept * self._mover.chunk_bytes)
        self._counters.add("existing_chunks", existed)
        self._counters.add("dropped_chunks", len(store.chunks) - kept - existed)

    def running_for(self, request_ids: Collection[str]) -> bool:
        """Whether blocks of these requests are in use."""
        return any(store.job.request_id in request_ids and not store.slots
                   for store in self._running)

    def wait_for(self, request_ids: Collection[str]) -> None:
        """Waits until the daemon no longer reads blocks of these requests, which others are about
        to write. RuntimeError when it does not say so: to go on would keep wrong bytes."""
        began = time.monotonic()
        patience_s = self._options.store_deadline_ms / 1000 + _GRACE_S
        for store in self._running:
            if store.job.request_id not in request_ids or store.slots:
                continue
            left = began + patience_s - time.monotonic()
            if not store.begun.wait(max(left, 0)):
                raise RuntimeError("kvstreamd: the GPU's stream does not come to a store's start")
            if store.operation is None:
                continue
            left = began + patience_s - time.monotonic()
            done, _ = concurrent.futures.wait([store.operation.released], max(left, 0))
            if not done:
                raise RuntimeError("kvstreamd: the daemon does not release blocks of "
                                   f"{store.job.request_id}")
        self._counters.add("block_wait_seconds", time.monotonic() - began)
