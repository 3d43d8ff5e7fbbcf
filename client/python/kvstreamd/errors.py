"""Errors: one class for each word of the protocol (Code in types.proto), under KVStreamError.

A message is "operation: cause". What a class means beyond the protocol's word is said with it.
"""

from __future__ import annotations

import enum
import errno
import os


class Code(enum.IntEnum):
    """The protocol's closed vocabulary of outcomes."""

    OK = 0
    NOT_FOUND = 1
    DATA_LOSS = 2
    UNAVAILABLE = 3
    RESOURCE_EXHAUSTED = 4
    DEADLINE_EXCEEDED = 5
    CANCELLED = 6
    FAILED_PRECONDITION = 7
    INVALID_ARGUMENT = 8
    PERMISSION_DENIED = 9
    UNIMPLEMENTED = 10


class KVStreamError(Exception):
    """Every error of this package. `code` is the protocol's word."""

    code = Code.UNAVAILABLE


class NotFound(KVStreamError):
    """A chunk, namespace, region or socket does not exist. A chunk that is missing is a miss."""

    code = Code.NOT_FOUND


class DataLoss(KVStreamError):
    """Bytes failed verification on every replica, and were not delivered: a miss."""

    code = Code.DATA_LOSS


class Unavailable(KVStreamError):
    """No tier that has it is in service, the daemon drains, or nobody listens."""

    code = Code.UNAVAILABLE


class SessionLost(Unavailable):
    """The session has ended: every further call fails so until Client.reconnect."""


class BootChanged(SessionLost):
    """Another boot of the daemon answered: what was registered with the old one is gone."""


class ResourceExhausted(KVStreamError):
    """A bounded resource stayed full; nothing was changed."""

    code = Code.RESOURCE_EXHAUSTED


class DeadlineExceeded(KVStreamError):
    """The operation ended since its deadline passed, or a call had no answer in time."""

    code = Code.DEADLINE_EXCEEDED


class Cancelled(KVStreamError):
    """The client cancelled the operation."""

    code = Code.CANCELLED


class FailedPrecondition(KVStreamError):
    """A state that the call needs does not hold: no GPU, memory in use, another session's."""

    code = Code.FAILED_PRECONDITION


class InvalidArgument(KVStreamError):
    """A field is missing, out of range or contradicts another; the message names it."""

    code = Code.INVALID_ARGUMENT


class PermissionDenied(KVStreamError):
    """This process may not do that, such as use the daemon's sockets."""

    code = Code.PERMISSION_DENIED


class Unimplemented(KVStreamError):
    """This daemon, or this client, does not have that."""

    code = Code.UNIMPLEMENTED


class StillRunning(KVStreamError, TimeoutError):
    """A wait is over and the operation is not: its memory is STILL IN USE. No DeadlineExceeded,
    which says that an operation has ended."""

    code = Code.DEADLINE_EXCEEDED


_CLASSES: dict[int, type[KVStreamError]] = {
    c.code: c for c in (NotFound, DataLoss, Unavailable, ResourceExhausted, DeadlineExceeded,
                        Cancelled, FailedPrecondition, InvalidArgument, PermissionDenied,
                        Unimplemented)}

# gRPC's numbers of the same words.
_GRPC = {1: Code.CANCELLED, 3: Code.INVALID_ARGUMENT, 4: Code.DEADLINE_EXCEEDED, 5: Code.NOT_FOUND,
         7: Code.PERMISSION_DENIED, 8: Code.RESOURCE_EXHAUSTED, 9: Code.FAILED_PRECONDITION,
         12: Code.UNIMPLEMENTED, 14: Code.UNAVAILABLE, 15: Code.DATA_LOSS}


def from_code(code: int, operation: str, cause: str) -> KVStreamError | None:
    """The error for a word of the protocol; None for OK. An unknown word is Unavailable."""
    if code == Code.OK:
        return None
    return _CLASSES.get(code, Unavailable)(f"{operation}: {cause or 'no cause given'}")


def from_grpc(status: int, operation: str, cause: str) -> KVStreamError:
    """The error for a gRPC status number that is not OK."""
    code = _GRPC.get(status, Code.UNAVAILABLE)
    return _CLASSES[code](f"{operation}: {cause or 'no cause given'}")


def from_os(error: OSError, operation: str) -> KVStreamError:
    """The error for a failed system call."""
    kind = {errno.ENOENT: NotFound, errno.EACCES: PermissionDenied, errno.EPERM: PermissionDenied,
            errno.EINVAL: InvalidArgument}.get(error.errno or 0, Unavailable)
    cause = os.strerror(error.errno) if error.errno else str(error)
    return kind(f"{operation}: {cause}")
