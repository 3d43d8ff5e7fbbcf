"""What a user may set: `adapter_params` of LMCache's `native_plugin` adapter."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

DEFAULT_SOCKET = "/run/kvstreamd/kvstreamd.sock"
_MAY_BE_ZERO = ("store_admission_ms", "lease_ms")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options, under their names in the config."""

    # What tells two models of one name apart: a hub's commit, or whatever changes with the weights.
    # LMCache tells the model's name alone, so that it must be given.
    weights_fingerprint: str
    # What else shapes the engine's KV and LMCache does not tell: dtype, quantisation, layout,
    # release. Any text, the same for all that share.
    engine: str = ""
    # Who must not share KV with others; empty: everybody shares.
    tenant: str = ""
    # LMCache's chunk size, tokens.
    chunk_tokens: int = 256
    # The daemon's gRPC socket; by default $KVSTREAMD_SOCKET.
    socket: str = ""
    # By default the socket's path with ".handoff" appended.
    handoff_socket: str = ""
    # Shared memory for objects on their way, half for loads and half for stores.
    host_buffer_mib: int = 1024
    # Objects that may wait, each way; a submission beyond is a miss, or not kept.
    queued_objects: int = 65_536
    lookup_timeout_ms: int = 2_000
    # A load, a store, that makes no progress for so long fails.
    load_deadline_ms: int = 10_000
    store_deadline_ms: int = 30_000
    # Stored objects wait for room in the daemon for so long, and are dropped then.
    store_admission_ms: int = 5_000
    # What a lookup has found is protected for so long.
    lease_ms: int = 30_000
    # A store is done only once it is on a disk, instead of in the daemon's memory.
    durable: bool = False
    # Share KV between releases of LMCache; only where both are known to lay it out alike.
    share_across_versions: bool = False

    @classmethod
    def parse(cls, params: Mapping[str, Any]) -> "Options":
        """The options of a config. ValueError for what is unknown, missing, of a wrong type or out
        of range; it names the option."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(params) - set(known))
        if unknown:
            raise ValueError(f"kvstreamd: unknown {', '.join(unknown)}; "
                             f"known are {', '.join(sorted(known))}")
        for name, value in params.items():
            default = known[name].default
            kind = str if default is dataclasses.MISSING else type(default)
            if type(value) is not kind:
                raise ValueError(f"kvstreamd: {name} is {value!r}, and must be of type "
                                 f"{kind.__name__}")
            if kind is int and (value < 0 or value == 0 and name not in _MAY_BE_ZERO):
                raise ValueError(f"kvstreamd: {name} is {value}, out of range")
        if not params.get("weights_fingerprint"):
            raise ValueError("kvstreamd: set weights_fingerprint, such as the commit of the "
                             "model's weights: LMCache tells the model's name alone, and what is "
                             "kept outlives it")
        options = cls(**params)
        socket = options.socket or os.environ.get("KVSTREAMD_SOCKET", DEFAULT_SOCKET)
        return dataclasses.replace(options, socket=socket)
