"""Operations of a session: a step that loads, a store, a prefetch.

An operation that has not ended may still touch the memory that it names. Not a wait that is over,
not a broken stream: only its end says that the memory is free. The end is the daemon's Quiesced or,
when the session is lost, the end of file of the handoff connection.

Futures are concurrent.futures.Future; they are set exactly once, always with a value and never with
an exception, and cannot be cancelled: `cancel` asks the daemon. Their callbacks run on the client's
own thread: they must not block, and may begin and cancel operations.

Thread rule: any thread. Ownership: shared by the caller and, until the end, the session.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable
from typing import Any

from kvstreamd import errors
from kvstreamd.errors import Code, KVStreamError

Future = concurrent.futures.Future


def running_future() -> Future[Any]:
    """A future that only its owner ends."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclasses.dataclass(frozen=True)
class RequestOutcome:
    """What became of one request of a ReadStep; its destinations are no longer touched."""

    request_id: int
    # How many leading chunks are valid; bytes of a chunk that is not are unspecified.
    leading_valid: int
    # Chunks after the first failure that are valid too, ascending.
    other_valid: tuple[int, ...]
    # Why the first chunk that is not valid is not; None when all are.
    error: KVStreamError | None

    @property
    def code(self) -> Code:
        """The error's word."""
        return Code.OK if self.error is None else self.error.code


@dataclasses.dataclass(frozen=True)
class StoredChunk:
    """What became of one chunk of a Store, as far as it is known."""

    # OK: staged, and published if that was waited for. RESOURCE_EXHAUSTED: dropped, a later miss.
    # UNAVAILABLE: not known, or not kept.
    code: Code
    # The key was present: nothing was copied.
    existed: bool


class Operation:
    """`ended`: a future of the first failure, None when everything succeeded."""

    def __init__(self, number: int, cancel: Callable[[int], None], patience_s: float):
        self.id = number
        self.ended: Future[KVStreamError | None] = running_future()
        self._cancel = cancel
        # How long a wait lasts that is given no time of its own.
        self.patience_s = patience_s

    def cancel(self) -> None:
        """Asks the daemon to end it early; never blocks. It still ends by itself."""
        self._cancel(self.id)

    def done(self) -> bool:
        """Whether it has ended."""
        return self.ended.done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, waiting at most `timeout_s`: by default the operation's deadline
        and the client's call timeout. False leaves it running and its memory IN USE."""
        return _await(self.ended, self.patience_s if timeout_s is None else timeout_s)

    def result(self, timeout_s: float | None = None) -> Any:
        """Waits as `wait` does. Raises the first failure, StillRunning when it has not ended."""
        if not self.wait(timeout_s):
            raise errors.StillRunning(f"wait for operation {self.id}: it has not ended")
        error = self.ended.result()
        if error is not None:
            raise error
        return self.outcome()

    def outcome(self) -> Any:
        """What `result` returns. Requires: ended."""
        return None

    def on_event(self, kind: str, event: Any) -> None:
        """For Session: one event of this operation, other than Quiesced."""

    def end(self, error: KVStreamError | None) -> None:
        """For Session: the end."""
        self.ended.set_result(error)


class ReadOperation(Operation):
    """A step that loads. `requests`: a future of RequestOutcome for each, in the step's order."""

    def __init__(self, number: int, cancel: Callable[[int], None], patience_s: float,
                 request_ids: list[int]):
        super().__init__(number, cancel, patience_s)
        self.requests: list[Future[RequestOutcome]] = [running_future() for _ in request_ids]
        self._request_ids = request_ids
        self._by_id = dict(zip(request_ids, self.requests))

    def outcome(self) -> list[RequestOutcome]:
        """Of every request, in the step's order. Requires: ended."""
        return [future.result(0) for future in self.requests]

    def on_event(self, kind: str, event: Any) -> None:
        if kind != "request_done":
            return
        future = self._by_id.get(event.request_id)
        if future is not None and not future.done():
            future.set_result(RequestOutcome(
                event.request_id, event.leading_valid, tuple(event.other_valid),
                errors.from_code(event.code, f"read request {event.request_id}", event.message)))

    def end(self, error: KVStreamError | None) -> None:
        # Without an outcome nothing is known to be valid, whatever is said of the whole.
        missing = error or errors.Unavailable(f"run operation {self.id}: it had no outcome")
        for number, future in zip(self._request_ids, self.requests):
            if not future.done():
                future.set_result(RequestOutcome(number, 0, (), missing))
        super().end(error)


class StoreOperation(Operation):
    """A store. `released`: a future of the chunks' outcomes, set once the daemon no longer reads
    the source memory. `durable`: the same once each is published or will not be; None when that was
    not asked for."""

    def __init__(self, number: int, cancel: Callable[[int], None], patience_s: float,
                 chunk_count: int, durable: bool):
        super().__init__(number, cancel, patience_s)
        self.released: Future[list[StoredChunk]] = running_future()
        self.durable: Future[list[StoredChunk]] | None = running_future() if durable else None
        self._chunks = [StoredChunk(Code.UNAVAILABLE, False)] * chunk_count

    def outcome(self) -> list[StoredChunk]:
        """Of every chunk, as far as known; complete once ended."""
        return list(self._chunks)

    def on_event(self, kind: str, event: Any) -> None:
        if kind == "store_released":
            for each in event.results:
                if each.chunk_index < len(self._chunks):
                    self._chunks[each.chunk_index] = StoredChunk(_word(each.code), each.existed)
            if event.all_released and not self.released.done():
                self.released.set_result(self.outcome())
        elif kind == "store_durable":
            for each in event.results:
                if each.chunk_index < len(self._chunks) and each.code != Code.OK:
                    before = self._chunks[each.chunk_index]
                    self._chunks[each.chunk_index] = StoredChunk(_word(each.code), before.existed)

    def end(self, error: KVStreamError | None) -> None:
        # Refused or lost: there was no StoreReleased, and the memory is free all the same.
        if not self.released.done():
            self.released.set_result(self.outcome())
        if self.durable is not None:
            self.durable.set_result(self._published(error))
        super().end(error)

    def _published(self, error: KVStreamError | None) -> list[StoredChunk]:
        """The outcomes; staged is not published where the session was lost before."""
        if not isinstance(error, errors.SessionLost):
            return self.outcome()
        return [StoredChunk(Code.UNAVAILABLE, chunk.existed) for chunk in self._chunks]


def _word(code: int) -> Code:
    """A word of a later protocol is no success."""
    try:
        return Code(code)
    except ValueError:
        return Code.UNAVAILABLE


def _await(future: Future[Any], timeout_s: float) -> bool:
    done, _ = concurrent.futures.wait([future], timeout_s)
    return bool(done)
