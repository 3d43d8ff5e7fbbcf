"""Lookups and deletions: calls that block, each kind on a thread of its own.

Thread rule: `submit`, `post` and `close` by any thread; all else is the thread's own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from kvstreamd import errors
from kvstreamd.identity import Namespace
from kvstreamd.lmcache.counters import Counters
from kvstreamd.lmcache.link import Link, Ready
from kvstreamd.lmcache.log import Warnings
from kvstreamd.lmcache.names import Space
from kvstreamd.lmcache.sizes import Sizes
from kvstreamd.lmcache.spaces import Spaces, salt_for
from kvstreamd.lmcache.tasks import Task
from kvstreamd.protocol import message

# Calls that wait; more are refused.
_QUEUED_MAX = 1024
# Keys of one deletion.
_DELETED_AT_ONCE = 4096
# The daemon begins deletions one after the other.
_DELETE_TIMEOUT_S = 20.0

EvictRequest = message("EvictRequest")


class Calls:
    """A thread named `name`, and what waits for it."""

    def __init__(self, name: str, link: Link, spaces: Spaces, counters: Counters,
                 warnings: Warnings):
        self._name = name
        self._link = link
        self._spaces = spaces
        self._counters = counters
        self._warnings = warnings
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kvstreamd-{name}", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Takes a submission, or ends it at once with the reason; never blocks."""
        if not self.post(lambda: self._serve(task)):
            self._counters.add("refused_objects", len(task.names))
            task.fail(f"too many {self._name} wait, or the connector is closed")

    def post(self, call: Callable[[], None]) -> bool:
        """Has the thread call something; False where too much waits. Never blocks."""
        with self._lock:
            # With the lock, so that none comes after the end.
            if self._closed.is_set() or self._queue.qsize() >= _QUEUED_MAX:
                return False
            self._queue.put(call)
            return True

    def close(self) -> None:
        """Ends the thread; what waits fails. Blocks for a running call."""
        with self._lock:
            self._closed.set()
            self._queue.put(lambda: None)  # Wakes it.
        self._thread.join()

    def _run(self) -> None:
        while not (self._closed.is_set() and self._queue.empty()):
            try:
                self._queue.get()()
            except Exception as error:  # Of whatever kind: the thread goes on.
                self._warnings.warn(f"{self._name} failed", error)

    def _serve(self, task: Task) -> None:
        ready = self._link.ready
        if self._closed.is_set() or ready is None:
            task.fail("the connector is closed" if self._closed.is_set() else self._link.why_away)
            return
        try:
            self._answer(ready, task)
        except Exception as error:  # Of whatever kind: LMCache waits for the end.
            self._warnings.warn(f"{self._name} fail", error)
            task.fail(str(error))

    def _answer(self, ready: Ready, task: Task) -> None:
        """Ends the task, or raises."""
        raise NotImplementedError

    def _groups(self, task: Task) -> dict[tuple[Space, bytes], list[int]]:
        """The objects of a task by what they share; without those that have no name."""
        groups: dict[tuple[Space, bytes], list[int]] = {}
        for index, name in enumerate(task.names):
            if name is None:
                self._counters.add("refused_objects")
            else:
                salt = salt_for(self._spaces.options, name.space, name.salt)
                groups.setdefault((name.space, salt), []).append(index)
        return groups

    def _find(self, ready: Ready, asked: list[tuple[Namespace, bytes, list[int]]], task: Task,
              lease_ms: int) -> list[bool]:
        """Which of the task's objects are in any of these namespaces; all are asked at once."""
        found = [False] * len(task.names)
        timeout_s = self._spaces.options.lookup_timeout_ms / 1000
        began = time.monotonic()
        calls = [(indexes, ready.client.start_lookup(
            namespace, [hash_of(task, i) for i in indexes], salt=salt, per_key=True,
            lease_ms=lease_ms, timeout_s=timeout_s)) for namespace, salt, indexes in asked]
        for indexes, call in calls:
            left_s = max(began + timeout_s - time.monotonic(), 0)
            # The call keeps its own time; a moment more is only for its thread.
            for index, there in zip(indexes, call.result(left_s + 1).present):
                found[index] |= there
        return found


def hash_of(task: Task, index: int) -> bytes:
    """The daemon's key for an object that has a name."""
    name = task.names[index]
    assert name is not None
    return name.prefix_hash


class Lookups(Calls):
    """Which objects are there, in any of the sizes that their space is known to have."""

    sizes: Sizes

    def _answer(self, ready: Ready, task: Task) -> None:
        limit = ready.client.limits.lookup_keys_max
        asked = []
        for (space, salt), indexes in self._groups(task).items():
            for nbytes in self.sizes.of(ready, space):
                namespace = self._spaces.namespace(ready.client, space.model, nbytes)
                asked += [(namespace, salt, indexes[at:at + limit])
                          for at in range(0, len(indexes), limit)]
        lease_ms = min(self._spaces.options.lease_ms, ready.client.limits.lease_ms_max)
        task.results = self._find(ready, asked, task, lease_ms)
        self._counters.add("looked_up_objects", len(task.names))
        self._counters.add("found_objects", sum(task.results))
        task.finish(True)


class Deletions(Calls):
    """Has the daemon give objects up. It gives up what comes after them in their prefixes as well,
    which without them is of no use."""

    sizes: Sizes

    def _answer(self, ready: Ready, task: Task) -> None:
        asked: list[tuple[Namespace, bytes, list[int]]] = []
        for (space, salt), indexes in self._groups(task).items():
            for nbytes in self.sizes.of(ready, space):
                namespace = self._spaces.namespace(ready.client, space.model, nbytes)
                for at in range(0, len(indexes), _DELETED_AT_ONCE):
                    asked.append((namespace, salt, indexes[at:at + _DELETED_AT_ONCE]))
        for namespace, salt, indexes in asked:
            self._evict(ready, namespace, salt, [hash_of(task, index) for index in indexes])
        # Some stay, as those that are being written.
        left = self._find(ready, asked, task, 0)
        task.results = [name is not None and not there for name, there in zip(task.names, left)]
        self._counters.add("deleted_objects", sum(task.results))
        task.finish(True)

    def _evict(self, ready: Ready, namespace: Namespace, salt: bytes, hashes: list[bytes]) -> Any:
        request = EvictRequest(namespace_id=namespace.id, prefix_hashes=hashes, salt=salt)
        try:
            return ready.client.session.call("Evict", request, _DELETE_TIMEOUT_S, "delete objects",
                                             service="Admin", reply="EvictReply")
        except errors.NotFound:
            return None  # A namespace without chunks.
