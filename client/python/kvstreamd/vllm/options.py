"""What a user may set: `kv_connector_extra_config` of vLLM's --kv-transfer-config."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

DEFAULT_SOCKET = "/run/kvstreamd/kvstreamd.sock"
# Tokens of a chunk where none are set: what the daemon's files are best made of.
_CHUNK_TOKENS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options, under their names in the config."""

    # The daemon's gRPC socket; by default $KVSTREAMD_SOCKET.
    socket: str = ""
    # By default the socket's path with ".handoff" appended.
    handoff_socket: str = ""
    # Tokens in a chunk, a multiple of the engine's block; 0: the smallest from 256 on.
    chunk_tokens: int = 0
    # What tells two models of one name apart; empty: read from the weights' files.
    weights_fingerprint: str = ""
    # Who must not share KV with others; empty: everybody shares.
    tenant: str = ""
    # Shared memory of each worker for KV on its way, half for loads and half for stores.
    host_buffer_mib: int = 256
    # A request waits for the answer to its lookup, and for its load, at most so long.
    lookup_timeout_ms: int = 500
    load_deadline_ms: int = 10_000
    # Stored chunks may wait for room in the daemon for so long, their source in use meanwhile.
    store_admission_ms: int = 0
    store_deadline_ms: int = 10_000
    # What a lookup has found is protected for so long; a request that waits longer looks up anew.
    lease_ms: int = 30_000
    # Bring what a queued request will load into the daemon's memory ahead.
    prefetch: bool = True
    # Do not load what is cheaper to recompute, where the daemon has a calibration.
    use_advice: bool = True
    # Go on where block hashes differ between processes, so that nothing is found after a restart.
    allow_random_hash_seed: bool = False
    # Share KV between releases of vLLM; only where both are known to lay it out alike.
    share_across_versions: bool = False

    @classmethod
    def parse(cls, extra_config: Mapping[str, Any]) -> "Options":
        """The options of a config. ValueError for what is unknown, of a wrong type or out of
        range; it names the option."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(extra_config) - set(known))
        if unknown:
            raise ValueError(f"kv_connector_extra_config: unknown {', '.join(unknown)}; "
                             f"known are {', '.join(sorted(known))}")
        for name, value in extra_config.items():
            kind = type(known[name].default)
            if type(value) is not kind:
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}, and must be "
                                 f"of type {kind.__name__}")
            if kind is int and value < 0:
                raise ValueError(f"kv_connector_extra_config: {name} is {value}, below 0")
        options = cls(**extra_config)
        for name in ("host_buffer_mib", "lookup_timeout_ms", "load_deadline_ms",
                     "store_deadline_ms", "lease_ms"):
            if getattr(options, name) == 0:
                raise ValueError(f"kv_connector_extra_config: {name} is 0")
        if options.lease_ms < 2 * options.lookup_timeout_ms:
            raise ValueError(f"kv_connector_extra_config: lease_ms is {options.lease_ms}, below "
                             "twice lookup_timeout_ms: what was found would be looked up again")
        socket = options.socket or os.environ.get("KVSTREAMD_SOCKET", DEFAULT_SOCKET)
        return dataclasses.replace(options, socket=socket)

    def chunk_tokens_for(self, block_tokens: int) -> int:
        """Tokens in a chunk of an engine with such blocks. ValueError where it is no multiple, and
        for blocks of one token: of a prompt that is there whole, the last would have no place."""
        if block_tokens < 2:
            raise ValueError("KVStreamConnector: block_size 1 is not supported")
        tokens = self.chunk_tokens or -(-_CHUNK_TOKENS // block_tokens) * block_tokens
        if tokens % block_tokens:
            raise ValueError(f"kv_connector_extra_config: chunk_tokens is {tokens}, and must be a "
                             f"multiple of the engine's block of {block_tokens} tokens")
        return tokens
