"""One lookup of a request's chunks: begun, answered, and the lease that it holds.

Thread rule: the scheduler's thread; `_on_answer` runs on the client's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from kvstreamd.vllm.link import Ready
from kvstreamd.vllm.options import Options

logger = logging.getLogger("vllm.kvstreamd")


class Lookup:
    """Begins at once. `keys` are the chunks asked for, in prefix order."""

    def __init__(self, ready: Ready, keys: list[bytes], salt: bytes, options: Options):
        self.ready = ready
        self.keys = keys
        self.salt = salt
        # Set with the answer.
        self.lease_id = 0
        # Leading chunks that are there.
        self.present = 0
        self.failed = False
        # From its start to its answer; None while there is none.
        self.seconds: float | None = None
        # Whether its answer is in the counters.
        self.counted = False
        self._worth = 0
        self._use_advice = options.use_advice
        self._began = time.monotonic()
        self._lease_s = options.lease_ms / 1000
        self._released = False
        try:
            self._future = ready.client.start_lookup(
                ready.namespace, keys, salt=salt, lease_ms=options.lease_ms,
                timeout_s=options.lookup_timeout_ms / 1000)
        except Exception as error:  # Of whatever kind: it would end the engine.
            self.seconds = 0.0
            self._fail(error)
            return
        self._future.add_done_callback(self._on_answer)

    def _on_answer(self, _: Any) -> None:
        self.seconds = time.monotonic() - self._began

    @property
    def asked(self) -> int:
        """Chunks that were asked for."""
        return len(self.keys)

    def then(self, action: Callable[[int], None]) -> None:
        """Calls the action on the client's thread with the number of chunks that are worth
        loading."""
        if self.failed:
            return

        def act(future: Any) -> None:
            if future.exception() is not None:
                return
            try:
                action(self._worth_of(future.result()))
            except Exception as error:  # Of whatever kind: nobody waits for it.
                logger.debug("kvstreamd: nothing is fetched ahead: %s", error)
        self._future.add_done_callback(act)

    def found(self) -> int | None:
        """Leading chunks that are there and worth loading; None while that is not known."""
        if self.failed:
            return 0
        if not self.counted:
            if self.seconds is None:
                return None
            if (error := self._future.exception(0)) is not None:
                self._fail(error)
                return 0
            result = self._future.result(0)
            self.present, self.lease_id = result.leading_run, result.lease_id
            self._worth = self._worth_of(result)
        return self._worth

    def _worth_of(self, result: Any) -> int:
        if self._use_advice and result.advice is not None:
            return min(result.leading_run, result.advice[0])
        return result.leading_run

    def _fail(self, error: BaseException) -> None:
        self.failed = True
        logger.warning("kvstreamd: a lookup failed, which is a miss: %s", error)

    def is_stale(self) -> bool:
        """Whether its lease has, or may have, ended, so that what it found may be gone."""
        return time.monotonic() - self._began > self._lease_s

    def release(self) -> None:
        """Gives the lease back, also one that is still to come."""
        if self.failed or self._released:
            return
        self._released = True
        self._future.add_done_callback(self._give_back)

    def _give_back(self, future: Any) -> None:
        if future.exception() is not None:
            return
        try:
            self.ready.client.release(future.result().lease_id)
        except Exception as error:  # Of whatever kind: the lease has ended with its session.
            logger.debug("kvstreamd: a lease is not given back: %s", error)
