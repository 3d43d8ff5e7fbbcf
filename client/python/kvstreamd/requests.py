"""What a caller hands to lookups, steps and stores, and how it becomes the protocol's messages.

Thread rule: any thread. Ownership: nothing is kept past the call, but for what the daemon fills.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvstreamd import errors
from kvstreamd.identity import Namespace
from kvstreamd.memory import HostRange
from kvstreamd.protocol import ClientMessage, LookupRequest
from kvstreamd.regions import DeviceBlocks


class Mode(enum.IntEnum):
    """What a step is for: ReadStep.Mode of the protocol."""

    # Useful only when all of it is there: the forward pass waits.
    JOINT = 1
    # Each request runs when its own load ends.
    INDEPENDENT = 2


class ChunkAt(NamedTuple):
    """One chunk of one shard, and where its bytes go to or come from."""

    # The engine's chained prefix hash, raw, 16 .. 64 bytes.
    prefix_hash: bytes
    # None in a prefetch.
    placement: HostRange | DeviceBlocks | None
    # Index into NamespaceDescription.groups.
    group: int = 0
    # 0 for a replicated group.
    shard: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """One request of a step; chunks in prefix order."""

    namespace: Namespace
    chunks: Sequence[ChunkAt]
    salt: bytes = b""
    # Comes back in the outcome; unique in the step.
    request_id: int
    # From a lookup; 0 means none.
    lease_id: int = 0


@dataclasses.dataclass(frozen=True)
class LookupResult:
    """What a lookup found."""

    # Leading chunks present in full: all asked groups, all shards of this node.
    leading_run: int
    # For each key whether it is present in full; only where per_key was asked for.
    present: tuple[bool, ...]
    # To be given back with Client.release; 0: none was asked for, or nothing was found.
    lease_id: int
    # Of the leading run: how many chunks each tier holds, and how many are staged.
    tiers: dict[str, int]
    staged: int
    # What loading costs against recomputing: chunks worth loading, and both times in microseconds.
    # None where the daemon has no calibration.
    advice: tuple[int, int, int] | None


def lookup_request(session: Any, namespace: Namespace, prefix_hashes: Iterable[bytes], *,
                   salt: bytes, groups: Sequence[int], per_key: bool, lease_ms: int) -> Any:
    """A LookupRequest of this session."""
    namespace.number_in(session)
    hashes = list(prefix_hashes)
    with _checked("look up chunks"):
        sizes = set(map(len, hashes)) or {0}
        if len(sizes) > 1:
            raise errors.InvalidArgument(
                f"look up chunks: prefix hashes of {min(sizes)} and of {max(sizes)} bytes")
        return LookupRequest(namespace_id=namespace.id, salt=salt, prefix_hashes=b"".join(hashes),
                             prefix_hash_bytes=sizes.pop(), groups=groups,
                             mode=2 if per_key else 1, lease_ms=lease_ms,
                             session_id=session.opened.session_id)


def lookup_result(reply: Any) -> LookupResult:
    """What a LookupReply says."""
    advice = None
    if reply.HasField("advice"):
        advice = (reply.advice.chunks_worth_loading, reply.advice.load_us,
                  reply.advice.recompute_us)
    return LookupResult(reply.leading_run, tuple(map(bool, reply.present)), reply.lease_id,
                        {tier.tier: tier.chunks for tier in reply.tiers}, reply.staged, advice)


def read_step_message(session: Any, operation_id: int, requests: Sequence[ReadRequest],
                      **fields: Any) -> Any:
    """A ClientMessage with a ReadStep."""
    client_message = ClientMessage()
    step = client_message.read_step
    with _checked("read step"):
        for name, value in fields.items():
            setattr(step, name, value)
        step.operation_id = operation_id
        for request in requests:
            request.namespace.number_in(session)
            added = step.requests.add(request_id=request.request_id,
                                      namespace_id=request.namespace.id, salt=request.salt,
                                      lease_id=request.lease_id)
            add_chunks(session, added.chunks, request.chunks)
    return client_message


def chunks_message(session: Any, kind: str, operation_id: int, namespace: Namespace,
                   chunks: Iterable[ChunkAt], **fields: Any) -> Any:
    """A ClientMessage with a Store or a Prefetch."""
    client_message = ClientMessage()
    target = getattr(client_message, kind)
    namespace.number_in(session)
    with _checked(kind):
        for name, value in fields.items():
            setattr(target, name, value)
        target.operation_id = operation_id
        target.namespace_id = namespace.id
        add_chunks(session, target.chunks, chunks)
    return client_message


def add_chunks(session: Any, target: Any, chunks: Iterable[ChunkAt]) -> None:
    """Appends chunks; a step has thousands, so that this is where a client's time goes."""
    add = target.add
    host, number = None, 0
    for prefix_hash, placement, group, shard in chunks:
        chunk = add()
        chunk.prefix_hash = prefix_hash
        if group:
            chunk.group = group
        if shard:
            chunk.shard = shard
        if isinstance(placement, HostRange):
            if placement.buffer is not host:
                host, number = placement.buffer, placement.buffer.number_in(session)
            place = chunk.placement.host
            place.buffer_id = number
            place.offset = placement.offset
        elif isinstance(placement, DeviceBlocks):
            place = chunk.placement.device
            place.region_id = placement.region.number_in(session)
            place.blocks.extend(placement.blocks)


class _checked:  # pylint: disable=invalid-name
    """Turns protobuf's refusal of a value into InvalidArgument."""

    def __init__(self, operation: str):
        self._operation = operation

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, (TypeError, ValueError)):
            raise errors.InvalidArgument(f"{self._operation}: {error}") from error
