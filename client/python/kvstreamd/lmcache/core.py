"""All that one connector runs: the link, the lanes, lookups and deletions.

Thread rule: any thread; nothing blocks but `close`. Ownership: owns all of it. LMCache's memory is
touched between a submission and its end alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstreamd.lmcache.calls import Deletions, Lookups
from kvstreamd.lmcache.counters import Counters
from kvstreamd.lmcache.extents import Extents
from kvstreamd.lmcache.link import Link
from kvstreamd.lmcache.loads import Loads
from kvstreamd.lmcache.log import Warnings
from kvstreamd.lmcache.names import ObjectName
from kvstreamd.lmcache.options import Options
from kvstreamd.lmcache.sizes import SIZES_MAX, Sizes
from kvstreamd.lmcache.spaces import Spaces
from kvstreamd.lmcache.stores import Stores
from kvstreamd.lmcache.tasks import Done, Task

# Room for size notes: some reads and writes that have not ended.
_NOTES_BYTES = 16 * SIZES_MAX * 4096

Names = Sequence[ObjectName | None]


class Core:
    """Connects as `client_name`."""

    def __init__(self, options: Options, client_name: str):
        half = options.host_buffer_mib * (1 << 20) // 2
        self.counters = Counters()
        warnings = Warnings()
        spaces = Spaces(options)
        self.link = Link(options, client_name, 2 * half + _NOTES_BYTES, self.counters)
        shared = (self.link, spaces, self.counters, warnings)
        self._lookups = Lookups("lookups", *shared)
        self._deletions = Deletions("deletions", *shared)
        sizes = Sizes(self.link, spaces, Extents(2 * half, _NOTES_BYTES), self._lookups.post)
        self._lookups.sizes = self._deletions.sizes = sizes
        self._loads = Loads("loads", self.link, spaces, Extents(0, half),
                            options.load_deadline_ms, self.counters, warnings)
        self._stores = Stores(sizes, "stores", self.link, spaces, Extents(half, half),
                              options.store_deadline_ms, self.counters, warnings)

    def find(self, names: Names, done: Done) -> None:
        """Which are there. Good unless the daemon could not be asked."""
        self._lookups.submit(Task(names, (), done))

    def load(self, names: Names, views: Sequence[memoryview], done: Done) -> None:
        """Fills the memory of those that are there in exactly its size; bytes of the others are
        left alone. Good if all were."""
        self._loads.submit(Task(names, views, done))

    def store(self, names: Names, views: Sequence[memoryview], done: Done) -> None:
        """Keeps them. Good if all were kept."""
        self._stores.submit(Task(names, views, done))

    def delete(self, names: Names, done: Done) -> None:
        """Has the daemon give them up; says which are not there any more."""
        self._deletions.submit(Task(names, (), done))

    def close(self) -> None:
        """Ends everything that has not ended, and the session. Idempotent."""
        for each in (self._loads, self._stores, self._lookups, self._deletions):
            each.close()
        self.link.close()
        self.counters.close()
