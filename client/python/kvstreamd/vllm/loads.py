"""A worker's loads: one ReadStep for all that a step asks for, and what became of each request.

A chunk counts only when the daemon says that it is valid. From the first that is not, in a
request's order, its blocks are reported and vLLM computes them.

Thread rule: the engine's thread alone; it never waits. Ownership: a request's slots, until the
daemon has let go of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable

from kvstreamd.operations import Future, RequestOutcome
from kvstreamd.requests import ChunkAt, Mode, ReadRequest
from kvstreamd.vllm.link import Ready
from kvstreamd.vllm.metadata import LoadJob
from kvstreamd.vllm.counters import Counters
from kvstreamd.vllm.mover import Mover
from kvstreamd.vllm.order import StreamOrder

logger = logging.getLogger("vllm.kvstreamd")


@dataclasses.dataclass
class LoadEnd:
    """How one request's load ended."""

    request_id: str
    # Leading chunks that are valid.
    good_chunks: int
    # Those of the others, which the engine has to compute.
    bad_blocks: set[int]


@dataclasses.dataclass
class _Part:
    """Chunks of a load that one ReadStep brings, from `first` on, with their slots."""

    first: int
    slots: list[int | None]
    outcome: Future[RequestOutcome] | None = None
    # Where it could not even begin.
    error: Exception | None = None


@dataclasses.dataclass
class _Load:
    job: LoadJob
    began: float
    next_chunk: int = 0
    # Leading chunks that are not known to be invalid.
    good: int = 0
    parts: list[_Part] = dataclasses.field(default_factory=list)

    def over(self) -> bool:
        """Whether no part runs and none is to come."""
        return not self.parts and self.next_chunk >= self.good


class Loads:
    """Loads with the shard of this rank."""

    def __init__(self, mover: Mover, shard: int, deadline_ms: int, counters: Counters,
                 order: StreamOrder):
        self._mover = mover
        self._shard = shard
        self._deadline_ms = deadline_ms
        self._counters = counters
        self._order = order
        self._active: list[_Load] = []
        self._ids = itertools.count(1)

    def begin(self, jobs: list[LoadJob], ready: Ready | None) -> None:
        """Takes a step's loads and begins with them."""
        now = time.monotonic()
        self._active += [_Load(job, now, good=len(job.chunks)) for job in jobs]
        self.pump(ready)

    def pump(self, ready: Ready | None) -> None:
        """Begins what has room. Without a daemon, what has not begun fails."""
        step: list[tuple[_Load, _Part, ReadRequest]] = []
        for load in self._active:
            if ready is None:
                load.good = min(load.good, load.next_chunk)
                continue
            part, chunks = self._next_part(load)
            if chunks:
                load.parts.append(part)
                step.append((load, part, ReadRequest(
                    namespace=ready.namespace, chunks=chunks, salt=load.job.salt,
                    request_id=next(self._ids), lease_id=load.job.lease_id)))
        if ready is None or not step:
            return
        self._order.after_forward(self._starter(ready, step))

    def _next_part(self, load: _Load) -> tuple[_Part, list[ChunkAt]]:
        part, chunks = _Part(load.next_chunk, []), []
        while load.next_chunk < load.good:
            key, blocks = load.job.chunks[load.next_chunk]
            place = self._mover.load_place(blocks, self._skip(load, load.next_chunk))
            if place is None:
                break
            chunks.append(ChunkAt(key, place[0], 0, self._shard))
            part.slots.append(place[1])
            load.next_chunk += 1
        return part, chunks

    def _starter(self, ready: Ready,
                 step: list[tuple[_Load, _Part, ReadRequest]]) -> Callable[[], None]:
        deadline_ms = self._deadline_ms

        def start() -> None:
            try:
                operation = ready.client.read_step([request for _, _, request in step],
                                                   mode=Mode.INDEPENDENT, deadline_ms=deadline_ms)
            except Exception as error:  # Of whatever kind: a load that never ends would hang.
                for _, part, _ in step:
                    part.error = error
                return
            for (_, part, _), outcome in zip(step, operation.requests):
                part.outcome = outcome
        return start

    def collect(self) -> list[LoadEnd]:
        """Copies what has come into the engine's blocks; the loads that have ended."""
        ended = []
        for load in self._active:
            for part in list(load.parts):
                if part.error is not None or part.outcome is not None and part.outcome.done():
                    load.parts.remove(part)
                    self._take(load, part)
            if load.over():
                ended.append(self._end(load))
        if ended:
            self._active = [load for load in self._active if not load.over()]
        return ended

    def _skip(self, load: _Load, chunk: int) -> int:
        return load.job.skip_blocks if chunk == 0 else 0

    def _take(self, load: _Load, part: _Part) -> None:
        valid, error = 0, part.error
        if part.outcome is not None:
            outcome = part.outcome.result(0)
            valid, error = outcome.leading_valid, outcome.error
        for number, slot in enumerate(part.slots):
            chunk = part.first + number
            if slot is not None:
                if number < valid:
                    self._mover.put(slot, load.job.chunks[chunk].blocks, self._skip(load, chunk))
                self._mover.load_slots.give(slot)
        self._counters.add("loaded_bytes", valid * self._mover.chunk_bytes)
        if valid < len(part.slots):
            self._counters.add("failed_chunks", len(part.slots) - valid)
            load.good = min(load.good, part.first + valid)
            logger.warning("kvstreamd: request %s: %d of %d chunks were loaded, vLLM computes the "
                           "rest: %s", load.job.request_id, valid, len(part.slots), error)

    def _end(self, load: _Load) -> LoadEnd:
        bad: set[int] = set()
        for chunk in range(load.good, len(load.job.chunks)):
            bad.update(load.job.chunks[chunk].blocks[self._skip(load, chunk):])
        self._counters.add("loads")
        self._counters.add("load_seconds", time.monotonic() - load.began)
        if bad:
            self._counters.add("load_failures")
        return LoadEnd(load.job.request_id, load.good, bad)
