"""The handoff connection: a socket that carries memory, and whose end says that memory is free.

Thread rule: any thread; `call` blocks for at most its timeout. Ownership: owns the socket and the
thread that reads it, which lives until the daemon closes its side.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from kvstreamd import errors
from kvstreamd.protocol import HandoffReply

_PACKET_BYTES_MAX = 4096
# Between attempts to receive on a socket that fails without having ended.
_RETRY_S = 0.01


def _receive(connection: socket.socket) -> Any:
    """A reply; None at the end of file. ValueError for what is none. Descriptors that ride on it
    are closed: this client brings its own memory and asks for none."""
    try:
        data, fds, flags, _ = socket.recv_fds(connection, _PACKET_BYTES_MAX, 1,
                                              socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # A daemon that died with requests unread.
        return None
    for fd in fds:
        os.close(fd)
    if not data:
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise ValueError("a packet was cut short")
    try:
        return HandoffReply.FromString(data)
    except Exception as error:  # protobuf's DecodeError differs between its implementations.
        raise ValueError("a packet is no HandoffReply") from error


def _limit_sends(connection: socket.socket, timeout_s: float) -> None:
    """Bounds connects and sends of a blocking socket, which then fail with BlockingIOError."""
    # No time at all would mean no bound.
    microseconds = max(int(timeout_s * 1e6), 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO,
                          struct.pack("ll", *divmod(microseconds, 1_000_000)))


class HandoffConnection:
    """Connects and takes the Welcome. Raises NotFound, PermissionDenied, Unavailable,
    DeadlineExceeded, FailedPrecondition for what is no handoff socket, InvalidArgument for a path
    that is too long."""

    def __init__(self, path: str, timeout_s: float):
        self.path = path
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        # By request: its event and, once that is set, the reply.
        self._waiting: dict[int, list[Any]] = {}
        self._ids = itertools.count(1)
        self._closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self.welcome = self._open(timeout_s)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, timeout_s: float) -> Any:
        operation = f"connect to {self.path}"
        deadline = time.monotonic() + timeout_s
        try:
            # Blocking, since a connect that does not block fails at once where too many wait to be
            # accepted.
            _limit_sends(self._socket, timeout_s)
            self._socket.connect(self.path)
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            reply = _receive(self._socket)
            self._socket.settimeout(None)
        except (TimeoutError, BlockingIOError):
            raise errors.DeadlineExceeded(f"{operation}: no welcome from the daemon") from None
        except OSError as error:
            if "too long" in str(error):
                raise errors.InvalidArgument(f"{operation}: the path is too long") from None
            raise errors.from_os(error, operation) from error
        except ValueError:
            raise errors.FailedPrecondition(f"{operation}: not a handoff socket") from None
        if reply is None:
            raise errors.Unavailable(f"{operation}: the daemon closed the connection")
        refusal = errors.from_code(reply.code, operation, reply.message)
        if refusal is not None:
            raise refusal
        if reply.WhichOneof("reply") != "welcome":
            raise errors.FailedPrecondition(f"{operation}: the first packet is no welcome")
        return reply.welcome

    def start(self, on_end: Callable[[], None]) -> None:
        """Begins to read. `on_end` is called once, by the reading thread, at the end of file."""
        threading.Thread(target=self._run, args=(on_end,), name="kvstreamd-handoff",
                         daemon=True).start()

    def call(self, request: Any, fd: int | None, timeout_s: float) -> Any:
        """The reply to a HandoffRequest, on which `fd` rides. Raises what the daemon says,
        Unavailable when the connection has ended, DeadlineExceeded without an answer."""
        operation = f"hand off by {self.path}"
        deadline = time.monotonic() + timeout_s
        waiting: list[Any] = [threading.Event(), None]
        with self._lock:
            if self._closed:
                raise errors.Unavailable(f"{operation}: the daemon closed the connection")
            request.request_id = next(self._ids)
            self._waiting[request.request_id] = waiting
        try:
            self._send(request.SerializeToString(), [] if fd is None else [fd], deadline)
            answered = waiting[0].wait(max(deadline - time.monotonic(), 0))
        except (TimeoutError, BlockingIOError):
            raise errors.DeadlineExceeded(f"{operation}: the daemon does not read") from None
        except OSError as error:
            raise errors.Unavailable(f"{operation}: {error}") from error
        finally:
            with self._lock:
                del self._waiting[request.request_id]
        reply = waiting[1]
        if reply is None:
            if answered:
                raise errors.Unavailable(f"{operation}: the daemon closed the connection")
            raise errors.DeadlineExceeded(f"{operation}: no answer from the daemon")
        refusal = errors.from_code(reply.code, operation, reply.message)
        if refusal is not None:
            raise refusal
        return reply

    def _send(self, data: bytes, fds: list[int], deadline: float) -> None:
        """OSError; of these TimeoutError and BlockingIOError at the deadline."""
        if not self._send_lock.acquire(timeout=max(deadline - time.monotonic(), 0)):
            raise TimeoutError
        try:
            _limit_sends(self._socket, deadline - time.monotonic())
            socket.send_fds(self._socket, [data], fds)
        finally:
            self._send_lock.release()

    def half_close(self) -> None:
        """Asks the daemon to end the session. Never blocks; idempotent."""
        self._shut(socket.SHUT_WR)

    def _shut(self, how: int) -> None:
        # With the lock, since a closed descriptor's number may be another's at once.
        with self._lock:
            try:
                self._socket.shutdown(how)
            except OSError:
                pass  # Ended already.

    def shut_down(self) -> None:
        """Ends the connection at once, as if the daemon had closed it. For one by which no memory
        went. Never blocks; idempotent."""
        self._shut(socket.SHUT_RDWR)

    def discard(self) -> None:
        """Closes a connection that was never started, or that has ended."""
        self._socket.close()

    def _run(self, on_end: Callable[[], None]) -> None:
        while True:
            try:
                reply = _receive(self._socket)
            except (ValueError, OSError):
                # Only the end of file says that memory is free: give the session up, read on.
                self.half_close()
                time.sleep(_RETRY_S)
                continue
            if reply is None:
                break
            with self._lock:
                waiting = self._waiting.get(reply.request_id)
                if waiting is not None:
                    waiting[1] = reply
                    waiting[0].set()
        with self._lock:
            self._closed = True
            for waiting in self._waiting.values():
                waiting[0].set()
        on_end()
        with self._send_lock, self._lock:
            self._socket.close()


