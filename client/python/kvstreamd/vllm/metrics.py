"""What the connector counts: for vLLM's log line, and for its Prometheus endpoint.

Counters alone, so that ranks and steps add up. Thread rule: a Counters is one side's own, used by
the engine's thread.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorPromMetrics,
                                                                  KVConnectorStats)

# Names as in Prometheus, after "kvstreamd_vllm_" and before "_total".
DOCUMENTATION = {
    "lookups": "Lookups that were answered.",
    "lookup_failures": "Lookups that failed or were not answered in time: misses.",
    "lookup_wait_seconds": "Time from the start of lookups to their answers.",
    "looked_up_tokens": "Tokens of the chunks that were looked up.",
    "found_tokens": "Tokens of the chunks that lookups found.",
    "hit_tokens": "Tokens that requests were told to load.",
    "prefetched_chunks": "Chunks that the daemon was asked to fetch for queued requests.",
    "uncached_requests": "Requests whose KV may not be shared: nothing tells their adapter's bytes.",
    "loads": "Loads that ended, of requests and ranks.",
    "load_failures": "Loads of which a chunk failed: vLLM recomputes the rest.",
    "load_seconds": "Time from the start of loads to their ends.",
    "loaded_bytes": "Bytes that were loaded into the KV cache.",
    "failed_chunks": "Chunks whose load failed.",
    "stored_chunks": "Chunks that the daemon took.",
    "stored_bytes": "Their bytes.",
    "existing_chunks": "Chunks that the daemon had already when they were stored.",
    "dropped_chunks": "Chunks that were not stored, since the daemon or the buffer had no room for "
                      "them or the daemon was away: later misses.",
    "block_wait_seconds": "Time that a worker waited before blocks could be reused.",
    "connections_lost": "Times that the daemon went away.",
}
NAMES = tuple(DOCUMENTATION)


@dataclasses.dataclass
class ConnectorStats(KVConnectorStats):
    """Counts since the last report: `data` has those that are not 0."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        total = dict(self.data)
        for name, value in other.data.items():
            total[name] = total.get(name, 0) + value
        return ConnectorStats(data=total)

    def reduce(self) -> dict[str, int | float]:
        rounded = {name: round(value, 3) for name, value in self.data.items()}
        if looked_up := self.data.get("looked_up_tokens", 0):
            rounded["found_percent"] = round(
                100 * self.data.get("found_tokens", 0) / looked_up, 1)
        return rounded

    def is_empty(self) -> bool:
        return not self.data


class Counters:
    """Adds up until the next report."""

    def __init__(self) -> None:
        self._data: dict[str, int | float] = {}

    def add(self, name: str, value: int | float = 1) -> None:
        """Adds to a counter of DOCUMENTATION."""
        assert name in DOCUMENTATION
        if value:
            self._data[name] = self._data.get(name, 0) + value

    def take(self) -> ConnectorStats | None:
        """What has come since the last call; None when nothing has."""
        if not self._data:
            return None
        taken, self._data = self._data, {}
        return ConnectorStats(data=taken)


class ConnectorPromMetrics(KVConnectorPromMetrics):
    """The counters at vLLM's /metrics, a series for each engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        kind = metric_types[Counter]
        self._series = {}
        for name, text in DOCUMENTATION.items():
            counter = kind(name=f"kvstreamd_vllm_{name}", documentation=text,
                           labelnames=labelnames)
            self._series[name] = {engine: counter.labels(*values)
                                  for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._series:
                self._series[name][engine_idx].inc(value)
