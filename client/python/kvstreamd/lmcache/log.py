"""Where this package logs: as LMCache does where it is installed."""

from __future__ import annotations

import logging
import threading
import time

try:
    from lmcache.logging import init_logger
    logger = init_logger("kvstreamd.lmcache")
except ImportError:
    logger = logging.getLogger("kvstreamd.lmcache")

# Between warnings of one kind, seconds.
_QUIET_S = 60.0


class Warnings:
    """Warns of each kind now and then; counters have the rest. Thread rule: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}

    def warn(self, kind: str, cause: object) -> None:
        """Logs "kind: cause", unless this kind was logged a moment ago."""
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(kind, -_QUIET_S) < _QUIET_S:
                return
            self._said[kind] = now
        logger.warning("kvstreamd: %s: %s", kind, cause)
