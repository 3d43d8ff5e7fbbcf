"""Room in a part of the host buffer, for objects of any size. Thread rule: any thread."""

from __future__ import annotations

import threading

# Objects begin at pages: a copy to the first byte of one is fast.
ALIGNMENT = 4096


def aligned(nbytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Extents:
    """First fit in `nbytes` from `offset`; what is given back joins its neighbours."""

    def __init__(self, offset: int, nbytes: int):
        self.nbytes = nbytes
        # What nobody has.
        self.free_bytes = nbytes
        self._lock = threading.Lock()
        # Free runs, [first byte, end), ascending, never touching.
        self._free = [(offset, offset + nbytes)]

    def take(self, nbytes: int) -> int | None:
        """The first byte of so much room; None when there is none now."""
        need = aligned(nbytes)
        with self._lock:
            for i, (first, end) in enumerate(self._free):
                if end - first >= need:
                    self.free_bytes -= need
                    self._free[i:i + 1] = [(first + need, end)] if end - first > need else []
                    return first
        return None

    def give(self, offset: int, nbytes: int) -> None:
        """Frees what `take` gave for so many bytes, once nobody touches it any more."""
        run = (offset, offset + aligned(nbytes))
        with self._lock:
            self.free_bytes += run[1] - run[0]
            after = next((i for i, (first, _) in enumerate(self._free) if first > offset),
                         len(self._free))
            self._free.insert(after, run)
            for i in (after, after - 1):
                if 0 <= i < len(self._free) - 1 and self._free[i][1] == self._free[i + 1][0]:
                    self._free[i:i + 2] = [(self._free[i][0], self._free[i + 1][1])]
