"""What loads and stores share: a thread, a bounded queue, and room in the host buffer.

Objects wait in their order until there is room; what waits goes to the daemon together, in one
message, as soon as there is. A lane fails what it has when nothing moves for `deadline_ms`,
whatever the daemon does: LMCache waits for no dead daemon. Room that the daemon may still touch
stays taken until it says so, or is gone.

Thread rule: `submit` and `close` by any thread; all else is the lane's. Ownership: owns its room.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvstreamd import errors
from kvstreamd.identity import Namespace
from kvstreamd.lmcache.counters import Counters
from kvstreamd.lmcache.extents import Extents
from kvstreamd.lmcache.link import Link, Ready
from kvstreamd.lmcache.log import Warnings
from kvstreamd.lmcache.spaces import Spaces, salt_for
from kvstreamd.lmcache.tasks import Task
from kvstreamd.memory import HostBuffer

Bytes = npt.NDArray[np.uint8]

# Beyond the deadline that the daemon keeps, seconds.
_GRACE_S = 1.0
# Of the operations that the daemon allows a session, each lane has this part at most.
_OPERATIONS_PART = 4


class Waiting(NamedTuple):
    """An object that waits for room."""

    task: Task
    index: int
    namespace: Namespace
    salt: bytes
    nbytes: int


class Placed(NamedTuple):
    """An object in the host buffer."""

    object: Waiting
    offset: int


class Lane:
    """Named `name`; `extents` is its room in the link's buffer."""

    # Of Counters: objects that failed.
    failures = ""

    def __init__(self, name: str, link: Link, spaces: Spaces, extents: Extents, deadline_ms: int,
                 counters: Counters, warnings: Warnings):
        self._name = name
        self._link = link
        self._spaces = spaces
        self._extents = extents
        self._deadline_ms = deadline_ms
        self._counters = counters
        self._warnings = warnings
        # None: the end.
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        # Objects of tasks that are not over.
        self._open_objects = 0
        self._tasks: list[Task] = []
        self._waiting: deque[Waiting] = deque()
        self._operations = 0
        # When an object was last settled, or the lane had nothing to do.
        self._moved = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"kvstreamd-{name}", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        """Takes a submission, or ends it at once with the reason; never blocks."""
        count = len(task.names)
        if not count:
            task.finish(True)
            return
        with self._lock:
            refused = self._closed or \
                self._open_objects + count > self._spaces.options.queued_objects
            if not refused:
                self._open_objects += count
                # With the lock, so that it comes before the end.
                self._events.put(lambda: self._admit(task))
        if refused:
            self._counters.add("refused_objects", count)
            task.fail("the connector is closed" if self._closed else
                      f"too many objects wait: queued_objects is "
                      f"{self._spaces.options.queued_objects}")

    def close(self) -> None:
        """Ends what has not ended. LMCache's memory is not touched after."""
        with self._lock:
            self._closed = True
            self._events.put(None)
        self._thread.join()

    # ------------------------------------------------------------ the lane's thread

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=_GRACE_S if self._tasks else None)
                if event is None:
                    break
                event()
            except queue.Empty:
                pass
            except Exception as error:  # Of whatever kind: a lane that ends would hang LMCache.
                self._warnings.warn(f"{self._name} failed", repr(error))
            self._pump()
            self._sweep()
        for task in self._tasks:
            task.fail("the connector is closed")

    def _admit(self, task: Task) -> None:
        if not self._tasks:
            self._moved = time.monotonic()
        self._tasks.append(task)
        ready = self._link.ready
        if ready is None:
            self._counters.add(self.failures, len(task.names))
            task.fail(self._link.why_away)
            return
        for index, name in enumerate(task.names):
            if name is None:
                self._counters.add("refused_objects")
                task.settle(index, False, "the key is of no known form")
                continue
            try:
                namespace = self._namespace(ready, task, index)
                salt = salt_for(self._spaces.options, name.space, name.salt)
            except errors.KVStreamError as error:
                self._settle(task, index, False, str(error))
                continue
            self._waiting.append(
                Waiting(task, index, namespace, salt, task.views[index].nbytes))

    def _namespace(self, ready: Ready, task: Task, index: int) -> Namespace:
        nbytes = task.views[index].nbytes
        if nbytes > self._extents.nbytes:
            raise errors.ResourceExhausted(
                f"move object: {nbytes} bytes, and host_buffer_mib has room for "
                f"{self._extents.nbytes} each way")
        name = task.names[index]
        assert name is not None
        return self._spaces.namespace(ready.client, name.space.model, nbytes)

    def _pump(self) -> None:
        """Begins what has room."""
        ready = self._link.ready
        if ready is None:
            while self._waiting:
                waiting = self._waiting.popleft()
                self._settle(waiting.task, waiting.index, False, self._link.why_away)
            return
        if not self._worthwhile():
            return
        # So many at once, or objects that may become as many.
        most = max(ready.client.limits.operations_per_session_max // _OPERATIONS_PART, 1)
        placed: list[Placed] = []
        while self._waiting and self._operations + len(placed) < most:
            waiting = self._waiting[0]
            if not waiting.task.over:
                offset = self._extents.take(waiting.nbytes)
                if offset is None:
                    break
                placed.append(Placed(waiting, offset))
            self._waiting.popleft()
        if placed:
            self._begin(ready, placed)

    def _worthwhile(self) -> bool:
        """Whether to begin now with what has room."""
        return True

    def _begin(self, ready: Ready, placed: list[Placed]) -> None:
        """Hands them to the daemon; each is settled, and its room freed, later."""
        raise NotImplementedError

    def _settle(self, task: Task, index: int, good: bool, error: str = "") -> None:
        self._moved = time.monotonic()
        if not good and not task.over:
            self._counters.add(self.failures)
        task.settle(index, good, error)

    def _fail(self, placed: list[Placed], error: str) -> None:
        """Those that the daemon does not touch."""
        for each in placed:
            self._free(each)
            self._settle(each.object.task, each.object.index, False, error)

    def _free(self, placed: Placed) -> None:
        self._extents.give(placed.offset, placed.object.nbytes)

    def _sweep(self) -> None:
        """Forgets tasks that are over, and fails those of a lane that stands still."""
        if self._tasks and time.monotonic() - self._moved > self._deadline_ms / 1000 + _GRACE_S:
            for task in self._tasks:
                self._counters.add(self.failures, task.left)
                task.fail(f"nothing moved for {self._deadline_ms} ms")
            self._warnings.warn(f"{self._name} stand still", "the daemon does not answer")
        over = [task for task in self._tasks if task.over]
        if over:
            self._tasks = [task for task in self._tasks if not task.over]
            with self._lock:
                self._open_objects -= sum(len(task.names) for task in over)

    def _memories(self, buffer: HostBuffer, placed: Placed) -> tuple[Bytes, Bytes]:
        """Of an object whose task is not over: LMCache's, and the host buffer's. ValueError where
        LMCache's is not contiguous."""
        task, index, _, _, nbytes = placed.object
        return (np.frombuffer(task.views[index], dtype=np.uint8),
                buffer.array[placed.offset:placed.offset + nbytes])

    def _copy(self, target: Bytes, source: Bytes) -> None:
        """Without the interpreter's lock, as numpy copies."""
        began = time.monotonic()
        np.copyto(target, source)
        self._counters.add("copy_seconds", time.monotonic() - began)
