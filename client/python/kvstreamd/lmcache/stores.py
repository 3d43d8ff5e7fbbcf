"""Stores: a copy of each object that has room, and a Store for it.

One for each object, since a Store says that its chunks come after one another, and LMCache's
submissions mix what several requests have written: which objects are one prefix is told by lookups
alone. LMCache's memory is read before its task ends, never after. Thread rule: as of Lane.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kvstreamd.errors import Code
from kvstreamd.lmcache.lane import Lane, Placed
from kvstreamd.lmcache.link import Ready
from kvstreamd.lmcache.loads import chunks_of
from kvstreamd.lmcache.sizes import Sizes
from kvstreamd.operations import Future, StoredChunk


class Stores(Lane):
    """The lane of stores. Tells `sizes` of what it stores."""

    failures = "dropped_objects"

    def __init__(self, sizes: Sizes, *arguments: Any):
        self._sizes = sizes
        super().__init__(*arguments)

    def _begin(self, ready: Ready, placed: list[Placed]) -> None:
        for each in placed:
            self._store(ready, each)

    def _store(self, ready: Ready, placed: Placed) -> None:
        options = self._spaces.options
        task, index, namespace, salt, nbytes = placed.object
        name = task.names[index]
        assert name is not None
        try:
            theirs, ours = self._memories(ready.buffer, placed)
            self._copy(ours, theirs)
            operation = ready.client.store(
                namespace, chunks_of(ready.buffer, [placed]), salt=salt,
                deadline_ms=min(self._deadline_ms, ready.client.limits.deadline_ms_max),
                admission_ms=options.store_admission_ms, durable=options.durable)
        except Exception as error:  # Of whatever kind: nothing has begun.
            self._warnings.warn("stores fail", error)
            self._fail([placed], str(error))
            return
        self._operations += 1
        self._sizes.note(name.space, nbytes)
        operation.released.add_done_callback(self._posting(self._released, placed))
        settled = operation.durable if operation.durable is not None else operation.released
        settled.add_done_callback(self._posting(self._stored, placed))
        operation.ended.add_done_callback(lambda _: self._events.put(self._ended))

    def _posting(self, what: Callable[[Placed, list[StoredChunk]], None], placed: Placed
                 ) -> Callable[[Future[list[StoredChunk]]], None]:
        """Has the lane's thread look at what the client's thread brings."""
        return lambda future: self._events.put(
            functools.partial(what, placed, future.result()))

    def _ended(self) -> None:
        self._operations -= 1

    def _released(self, placed: Placed, _: list[StoredChunk]) -> None:
        self._free(placed)

    def _stored(self, placed: Placed, chunks: list[StoredChunk]) -> None:
        chunk, = chunks
        good = chunk.code == Code.OK
        if good:
            self._counters.add("existing_objects" if chunk.existed else "stored_objects")
            self._counters.add("stored_bytes", 0 if chunk.existed else placed.object.nbytes)
        else:
            self._warnings.warn("objects are not stored", chunk.code.name)
        self._settle(placed.object.task, placed.object.index, good,
                     f"not stored: {chunk.code.name}")
