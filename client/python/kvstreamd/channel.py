"""The gRPC channel to a daemon, and the errors of its calls.

Thread rule: any thread. Ownership: the channel is the caller's, who closes it.
"""

from __future__ import annotations

from typing import Any

import grpc

from kvstreamd import errors

_CHANNEL_OPTIONS = [
    # The daemon says what a message may have.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Channels of one address share a connection and its back-off by default: a new session would
    # wait for the failures of the lost one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


def open_channel(socket: str) -> grpc.Channel:
    """A channel to the daemon's gRPC socket; connects when it is used."""
    return grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)


def serialized(request: Any) -> bytes:
    """A message as it travels."""
    return request.SerializeToString()


def from_rpc(error: grpc.RpcError, operation: str) -> errors.KVStreamError:
    """The error for a failed call."""
    return errors.from_grpc(error.code().value[0], operation, error.details())
