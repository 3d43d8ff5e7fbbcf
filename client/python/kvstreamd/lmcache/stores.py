"""Stores: a copy of each object that has room, and a Store for those of one namespace and tenant.

LMCache's memory is read before its task ends, never after. Thread rule: as of Lane.
"""

from __future__ import annotations

import functools
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
        alike: dict[tuple[Any, bytes], list[Placed]] = {}
        for each in placed:
            alike.setdefault((each.object.namespace, each.object.salt), []).append(each)
        for group in alike.values():
            self._store(ready, group)

    def _store(self, ready: Ready, placed: list[Placed]) -> None:
        options = self._spaces.options
        try:
            for each in placed:
                theirs, ours = self._memories(ready.buffer, each)
                self._copy(ours, theirs)
            first = placed[0].object
            operation = ready.client.store(
                first.namespace, chunks_of(ready.buffer, placed), salt=first.salt,
                deadline_ms=min(self._deadline_ms, ready.client.limits.deadline_ms_max),
                admission_ms=options.store_admission_ms, durable=options.durable)
        except Exception as error:  # Of whatever kind: nothing has begun.
            self._warnings.warn("stores fail", error)
            self._fail(placed, str(error))
            return
        self._operations += 1
        name = first.task.names[first.index]
        assert name is not None
        self._sizes.note(name.space, first.nbytes)
        operation.released.add_done_callback(functools.partial(self._post, self._released, placed))
        settled = operation.durable if operation.durable is not None else operation.released
        settled.add_done_callback(functools.partial(self._post, self._stored, placed))
        operation.ended.add_done_callback(lambda _: self._events.put(self._ended))

    def _post(self, what: Any, placed: list[Placed], future: Future[list[StoredChunk]]) -> None:
        """On the client's thread."""
        self._events.put(lambda: what(placed, future.result()))

    def _ended(self) -> None:
        self._operations -= 1

    def _released(self, placed: list[Placed], _: list[StoredChunk]) -> None:
        for each in placed:
            self._free(each)

    def _stored(self, placed: list[Placed], chunks: list[StoredChunk]) -> None:
        for each, chunk in zip(placed, chunks):
            good = chunk.code == Code.OK
            if good:
                self._counters.add("existing_objects" if chunk.existed else "stored_objects")
                self._counters.add("stored_bytes", 0 if chunk.existed else each.object.nbytes)
            else:
                self._warnings.warn("objects are not stored", chunk.code.name)
            self._settle(each.object.task, each.object.index, good,
                         f"not stored: {chunk.code.name}")
