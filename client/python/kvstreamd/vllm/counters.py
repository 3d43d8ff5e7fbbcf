"""What the connector counts.

Counters alone, so that ranks and steps add up. Thread rule: a Counters is one side's own, used by
the engine's thread.
"""

from __future__ import annotations

# Names as in Prometheus, after "vllm:kvstreamd_" and before "_total".
DOCUMENTATION = {
    "lookups": "Lookups that were answered.",
    "lookup_failures": "Lookups that failed or were not answered in time: misses.",
    "lookup_wait_seconds": "Time from the start of lookups to their answers.",
    "looked_up_tokens": "Tokens of the chunks that were looked up.",
    "found_tokens": "Tokens of the chunks that lookups found.",
    "hit_tokens": "Tokens that requests were told to load.",
    "prefetched_chunks": "Chunks that the daemon was asked to fetch for queued requests.",
    "uncached_requests": "Requests whose KV may not be shared, as of an unknown adapter.",
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
    "copying_ranks": "Ranks whose GPU's KV goes through host memory, since the daemon cannot reach "
                     "it or vLLM may sleep.",
    "connections_lost": "Sessions that the daemon ended: the scheduler's, and one of each rank.",
}


class Counters:
    """Adds up until the next report."""

    def __init__(self) -> None:
        self._data: dict[str, int | float] = {}

    def add(self, name: str, value: int | float = 1) -> None:
        """Adds to a counter of DOCUMENTATION."""
        assert name in DOCUMENTATION
        if value:
            self._data[name] = self._data.get(name, 0) + value

    def take(self) -> dict[str, int | float]:
        """What has come since the last call, without what is 0."""
        taken, self._data = self._data, {}
        return taken
