"""Loads: ReadSteps of all that has room, and a copy of each object that has come whole.

An object counts only when the daemon says that its bytes are verified; LMCache's memory is written
for no other. Thread rule: as of Lane.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from kvstreamd.lmcache.lane import Lane, Placed
from kvstreamd.lmcache.link import Ready
from kvstreamd.memory import HostBuffer
from kvstreamd.operations import Future, RequestOutcome
from kvstreamd.requests import ChunkAt, Mode, ReadRequest

# Objects are copied while the next are read: a step is made of requests of about this many bytes.
REQUEST_BYTES = 16 << 20


class Loads(Lane):
    """The lane of loads."""

    failures = "missed_objects"

    def _worthwhile(self) -> bool:
        # Steps of one object each, as room comes back, would have an end each, and at the end of a
        # step the daemon reads twice what is late. One half of the room is read meanwhile.
        return not self._operations or self._extents.free_bytes >= self._extents.nbytes // 2

    def _begin(self, ready: Ready, placed: list[Placed]) -> None:
        requests = list(_requests(placed))
        deadline_ms = min(self._deadline_ms, ready.client.limits.deadline_ms_max)
        try:
            operation = ready.client.read_step(
                [_read_request(ready.buffer, i, each) for i, each in enumerate(requests)],
                mode=Mode.JOINT, deadline_ms=deadline_ms)
        except Exception as error:  # Of whatever kind: nothing has begun.
            self._warnings.warn("loads fail", error)
            self._fail(placed, str(error))
            return
        self._operations += 1
        for each, outcome in zip(requests, operation.requests):
            outcome.add_done_callback(functools.partial(self._post_loaded, ready.buffer, each))
        operation.ended.add_done_callback(lambda _: self._events.put(self._ended))

    def _post_loaded(self, buffer: HostBuffer, placed: list[Placed],
                     outcome: Future[RequestOutcome]) -> None:
        """On the client's thread."""
        self._events.put(lambda: self._loaded(buffer, placed, outcome.result()))

    def _ended(self) -> None:
        self._operations -= 1

    def _loaded(self, buffer: HostBuffer, placed: list[Placed], outcome: RequestOutcome) -> None:
        valid = {*range(outcome.leading_valid), *outcome.other_valid}
        for number, each in enumerate(placed):
            error = str(outcome.error)
            good = number in valid and not each.object.task.over
            if good:
                try:
                    self._copy(*self._memories(buffer, each))
                except Exception as failure:  # Of whatever kind: its room must be freed.
                    good, error = False, f"copy object: {failure}"
            if good:
                self._counters.add("loaded_objects")
                self._counters.add("loaded_bytes", each.object.nbytes)
            self._free(each)
            self._settle(each.object.task, each.object.index, good, error)


def _requests(placed: list[Placed]) -> Iterable[list[Placed]]:
    """In their order: runs of one namespace and salt, of at most REQUEST_BYTES."""
    run: list[Placed] = []
    nbytes = 0
    for each in placed:
        if run and (nbytes + each.object.nbytes > REQUEST_BYTES
                    or each.object.namespace is not run[0].object.namespace
                    or each.object.salt != run[0].object.salt):
            yield run
            run, nbytes = [], 0
        run.append(each)
        nbytes += each.object.nbytes
    if run:
        yield run


def _read_request(buffer: HostBuffer, number: int, placed: list[Placed]) -> ReadRequest:
    first = placed[0].object
    return ReadRequest(namespace=first.namespace, salt=first.salt, request_id=number + 1,
                       chunks=chunks_of(buffer, placed))


def chunks_of(buffer: HostBuffer, placed: list[Placed]) -> list[ChunkAt]:
    """Their keys and places."""
    chunks = []
    for each in placed:
        name = each.object.task.names[each.object.index]
        assert name is not None
        chunks.append(ChunkAt(name.prefix_hash, buffer.at(each.offset)))
    return chunks
