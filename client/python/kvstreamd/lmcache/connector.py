"""The connector that LMCache's server loads: adapter type `native_plugin`.

LMCache submits batches and gets numbers; completions come by an event descriptor. Thread rule: any
thread. Ownership: LMCache's memory is touched between a submission and its completion alone, and
never after `close` has returned.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kvstreamd.lmcache.core import Core
from kvstreamd.lmcache.names import parse
from kvstreamd.lmcache.options import Options
from kvstreamd.lmcache.tasks import Done

# The submission's number, whether all is well, why not, and what became of each object.
Completion = tuple[int, bool, str, list[bool] | None]


class KVStreamConnector:
    """`params`: Options. Without a daemon every submission fails, until it is back."""

    def __init__(self, **params: Any):
        options = Options.parse(params)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._completions: list[Completion] = []
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False
        self._core = Core(options, f"lmcache/{os.getpid()}")

    def event_fd(self) -> int:
        """Readable while there are completions."""
        return self._event_fd

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        """Loads objects into the buffers; one that is not there in exactly the buffer's size is a
        miss."""
        return self._submit(lambda done: self._core.load(_names(keys), _paired(keys, buffers),
                                                         done))

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        """Stores objects; all must be kept for the completion to be good."""
        return self._submit(lambda done: self._core.store(_names(keys), _paired(keys, buffers),
                                                          done))

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Says which objects are there."""
        return self._submit(lambda done: self._core.find(_names(keys), done))

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Gives objects up; says which are gone."""
        return self._submit(lambda done: self._core.delete(_names(keys), done))

    def drain_completions(self) -> list[Completion]:
        """What has completed since the last call."""
        with self._lock:
            try:
                if not self._closed:
                    os.eventfd_read(self._event_fd)
            except BlockingIOError:
                pass
            completions, self._completions = self._completions, []
        return completions

    def counters(self) -> dict[str, float]:
        """What has been counted; kvstreamd/lmcache/counters.py says what each is."""
        return self._core.counters.sums()

    def close(self) -> None:
        """Ends what has not ended. Idempotent."""
        self._core.close()
        with self._lock:
            if not self._closed:
                os.close(self._event_fd)
            self._closed = True

    def _submit(self, begin: Callable[[Done], None]) -> int:
        number = next(self._numbers)

        def done(good: bool, error: str, results: list[bool]) -> None:
            with self._lock:
                self._completions.append((number, good, error, results))
                if not self._closed:
                    os.eventfd_write(self._event_fd, 1)
        begin(done)
        return number


def _names(keys: Sequence[str]) -> list[Any]:
    return [parse(key) for key in keys]


def _paired(keys: Sequence[str], buffers: Sequence[memoryview]) -> Sequence[memoryview]:
    if len(keys) != len(buffers):
        raise ValueError(f"{len(keys)} keys and {len(buffers)} buffers")
    return buffers
