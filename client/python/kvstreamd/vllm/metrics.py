"""What the connector counts, as vLLM takes it: for its log line and for Prometheus."""

from __future__ import annotations

import dataclasses
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorPromMetrics,
                                                                  KVConnectorStats)

from kvstreamd.vllm.counters import DOCUMENTATION


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


class ConnectorPromMetrics(KVConnectorPromMetrics):
    """The counters at vLLM's /metrics, a series for each engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        kind = metric_types[Counter]
        self._series = {}
        for name, text in DOCUMENTATION.items():
            counter = kind(name=f"vllm:kvstreamd_{name}", documentation=text,
                           labelnames=labelnames)
            self._series[name] = {engine: counter.labels(*values)
                                  for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._series:
                self._series[name][engine_idx].inc(value)
