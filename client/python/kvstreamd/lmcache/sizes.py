"""Which sizes a space's objects have: a lookup of LMCache's has keys alone.

What this process stores tells. For what others have stored, before it began or elsewhere, the
daemon keeps notes: small chunks in a namespace of their own, each with one size, under keys
that count up. A note that is gone, as any chunk may be, costs misses until the first store.

Thread rule: any thread.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

from kvstreamd import errors
from kvstreamd.identity import Namespace, fingerprint_of
from kvstreamd.lmcache.extents import ALIGNMENT, Extents
from kvstreamd.lmcache.link import Link, Ready
from kvstreamd.lmcache.names import Space
from kvstreamd.lmcache.spaces import Spaces, salt_for
from kvstreamd.operations import Operation
from kvstreamd.requests import ChunkAt, ReadRequest

# Of one space that are noted. More than a few only where LMCache's chunk size is changed often.
SIZES_MAX = 8
_KEYS = [fingerprint_of(size_note=number) for number in range(SIZES_MAX)]
_MAGIC = b"kvstreamd size of LMCache's objects\0"
# That are remembered; past them it begins anew.
_SPACES_MAX = 4096
# Notes are looked at again, so that they are not evicted, after so many seconds.
_REFRESH_S = 60.0
# After a failure or a new note, sooner.
_AGAIN_S = 1.0


class Sizes:
    """`extents` is room for notes; `post` has the thread of lookups call something soon, and may
    refuse."""

    def __init__(self, link: Link, spaces: Spaces, extents: Extents,
                 post: Callable[[Callable[[], None]], None]):
        self._link = link
        self._spaces = spaces
        self._extents = extents
        self._post = post
        self._lock = threading.Lock()
        # What this process has stored last.
        self._own: dict[Space, int] = {}
        # What the notes have said, and until when that is good enough.
        self._noted: dict[Space, tuple[float, list[int]]] = {}
        # When to look at the note of such a size again.
        self._due: dict[tuple[Space, int], float] = {}

    def note(self, space: Space, nbytes: int) -> None:
        """This process stores objects of such a size; never blocks."""
        now = time.monotonic()
        with self._lock:
            if len(self._own) >= _SPACES_MAX:
                self._own.clear()
                self._due.clear()
            self._own[space] = nbytes
            if self._due.get((space, nbytes), 0) > now:
                return
            self._due[space, nbytes] = now + _AGAIN_S
        self._post(lambda: self._write(space, nbytes))

    def of(self, ready: Ready, space: Space) -> list[int]:
        """The sizes to look for. Raises as calls and operations do."""
        with self._lock:
            own = self._own.get(space)
        if own is not None:
            return [own]
        until, sizes = self._noted.get(space, (0.0, []))
        if until < time.monotonic():
            sizes = sorted({*self._read(ready, space).values()} - {0})
            if len(self._noted) >= _SPACES_MAX:
                self._noted.clear()
            # What nobody has stored yet may be stored any time.
            self._noted[space] = (time.monotonic() + (_REFRESH_S if sizes else 0), sizes)
        return sizes

    def _read(self, ready: Ready, space: Space) -> dict[int, int]:
        """What the notes say, by the numbers of those that are there; 0: it cannot be read."""
        namespace, salt = self._place(ready, space)
        present = ready.client.lookup(namespace, _KEYS, salt=salt, per_key=True).present
        numbers = [number for number, there in enumerate(present) if there]
        if not numbers:
            return {}
        offset = self._extents.take(len(numbers) * ALIGNMENT)
        if offset is None:
            raise errors.ResourceExhausted("read size notes: their memory is still in use")
        operation = ready.client.read_step([
            ReadRequest(namespace=namespace, salt=salt, request_id=number + 1, chunks=[
                ChunkAt(_KEYS[number], ready.buffer.at(offset + i * ALIGNMENT))])
            for i, number in enumerate(numbers)])
        self._free_after(operation, offset, len(numbers))
        if not operation.wait():
            raise errors.StillRunning("read size notes: no end")
        pages = [bytes(ready.buffer.array[offset + i * ALIGNMENT:][:ALIGNMENT])
                 if outcome.result(0).leading_valid else b""
                 for i, outcome in enumerate(operation.requests)]
        return {number: _decode(page) for number, page in zip(numbers, pages)}

    def _write(self, space: Space, nbytes: int) -> None:
        """Notes a size, unless it is noted. Another process may take the same key: what it is, is
        looked at when the note is due again."""
        ready = self._link.ready
        if ready is None:
            return
        noted = self._read(ready, space)
        if nbytes in noted.values():
            with self._lock:
                self._due[space, nbytes] = time.monotonic() + _REFRESH_S
            return
        free = [number for number in range(SIZES_MAX) if number not in noted]
        offset = self._extents.take(ALIGNMENT) if free else None
        if offset is None:
            return
        namespace, salt = self._place(ready, space)
        note = _MAGIC + nbytes.to_bytes(8, "little")
        page = ready.buffer.array[offset:offset + ALIGNMENT]
        page[:] = 0
        page[:len(note)] = memoryview(note)
        operation = ready.client.store(namespace, [
            ChunkAt(_KEYS[free[0]], ready.buffer.at(offset))], salt=salt)
        self._free_after(operation, offset, 1)

    def _place(self, ready: Ready, space: Space) -> tuple[Namespace, bytes]:
        """Of a space's notes."""
        return (self._spaces.namespace(ready.client, space.model, ALIGNMENT, "size-notes"),
                salt_for(self._spaces.options, space))

    def _free_after(self, operation: Operation, offset: int, pages: int) -> None:
        give = functools.partial(self._extents.give, offset, pages * ALIGNMENT)
        operation.ended.add_done_callback(lambda _: give())


def _decode(page: bytes) -> int:
    """A note's size; 0 for what is none."""
    if not page.startswith(_MAGIC):
        return 0
    return int.from_bytes(page[len(_MAGIC):len(_MAGIC) + 8], "little")
