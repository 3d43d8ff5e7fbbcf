"""What the connector counts, for Prometheus as well, where LMCache's endpoint serves it.

Thread rule: any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

# Names as in Prometheus, after "lmcache_kvstreamd_" and before "_total".
DOCUMENTATION = {
    "looked_up_objects": "Objects that were looked up.",
    "found_objects": "Objects that lookups found.",
    "loaded_objects": "Objects that were loaded.",
    "loaded_bytes": "Their bytes.",
    "missed_objects": "Objects whose load failed or that were not there: misses.",
    "stored_objects": "Objects that the daemon took.",
    "stored_bytes": "Their bytes.",
    "existing_objects": "Objects that the daemon had already when they were stored.",
    "dropped_objects": "Objects that were not stored: later misses.",
    "deleted_objects": "Objects that were deleted.",
    "refused_objects": "Objects refused since too many waited, or since their keys are of no known "
                       "form.",
    "copy_seconds": "Time spent copying between the shared memory and LMCache's.",
    "connections_lost": "Sessions that the daemon ended.",
}
_PREFIX = "lmcache_kvstreamd"


class Counters:
    """Sums since the start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = dict.fromkeys(DOCUMENTATION, 0)
        self._registry = _register(self)

    def add(self, name: str, value: float = 1) -> None:
        """Adds to a counter of DOCUMENTATION."""
        with self._lock:
            self._sums[name] += value

    def sums(self) -> dict[str, float]:
        """All of them, now."""
        with self._lock:
            return dict(self._sums)

    def close(self) -> None:
        """Takes them away from Prometheus."""
        if self._registry is not None:
            self._registry.unregister(self)
            self._registry = None

    def collect(self) -> Iterator[Any]:
        """For prometheus_client."""
        from prometheus_client.core import CounterMetricFamily
        for name, value in self.sums().items():
            yield CounterMetricFamily(f"{_PREFIX}_{name}", DOCUMENTATION[name], value=value)


def _register(counters: Counters) -> Any:
    """The registry that has them; None where there is no Prometheus, or where another connector of
    this process has its there."""
    try:
        from prometheus_client import REGISTRY
        REGISTRY.register(counters)
    except (ImportError, ValueError):
        return None
    return REGISTRY
