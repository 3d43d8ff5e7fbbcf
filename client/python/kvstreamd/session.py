"""One session with a daemon, for good: its stream, its handoff connection, its operations.

When the daemon goes away, every operation that has not ended ends with SessionLost, but only once
the handoff connection has reported end of file: until then the daemon may touch the memory.

Thread rule: any thread. Two threads of its own: one reads the stream and runs the futures'
callbacks, one reads the handoff connection. Ownership: owns the channel, and keeps itself and the
memory of regions alive until the daemon has let go of them, whoever else has forgotten them.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from kvstreamd import errors
from kvstreamd.channel import from_rpc, open_channel, serialized
from kvstreamd.errors import KVStreamError
from kvstreamd.handoff import HandoffConnection
from kvstreamd.operations import Operation
from kvstreamd.protocol import PACKAGE, PROTOCOL_VERSION, ClientMessage, ServerMessage, message

# Messages that wait to be sent; as many operations as a session may have running, several times.
QUEUED_MESSAGES_MAX = 4096
_FORGOTTEN = object()
_ENDED_WITH_SESSION = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


class Session:
    """Opens a session. Errors as of Client."""

    def __init__(self, socket: str, handoff_socket: str, client_name: str, timeout_s: float):
        deadline = time.monotonic() + timeout_s
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._operations: dict[int, Operation] = {}
        self._ids = itertools.count(1)
        self._halves_open = {"stream", "handoff"}
        self._cause: KVStreamError | None = None
        self._settled = threading.Event()
        # Both halves have ended, and every operation.
        self._over = threading.Event()
        # What regions lie in: the daemon may touch it until they are closed or the session is over.
        self._held: dict[object, Any] = {}
        # None: nothing more will be sent. _FORGOTTEN: nobody has the client any more.
        self._outgoing: queue.SimpleQueue[bytes | object | None] = queue.SimpleQueue()
        # Written once, before _settled; constant after.
        self.opened: Any = None

        self.handoff = HandoffConnection(handoff_socket, timeout_s)
        version = self.handoff.welcome.protocol_version
        if version != PROTOCOL_VERSION:
            self.handoff.discard()
            raise errors.FailedPrecondition(
                f"open session: the daemon speaks protocol version {version}, this client "
                f"{PROTOCOL_VERSION}")
        self.boot_id: bytes = self.handoff.welcome.boot_id
        self.channel = open_channel(socket)
        self._methods: dict[str, Any] = {}
        self._open_stream(client_name)
        if not self._settled.wait(max(deadline - time.monotonic(), 0)):
            self._give_up()
            raise errors.DeadlineExceeded(f"open session: no answer from {socket}")
        if self.opened is None:
            self._give_up()
            raise self._cause or errors.Unavailable(f"open session: {socket} ended it")

    def _open_stream(self, client_name: str) -> None:
        hello = ClientMessage()
        hello.hello.token = self.handoff.welcome.token
        hello.hello.protocol_version = PROTOCOL_VERSION
        hello.hello.client_name = client_name
        self._outgoing.put(hello.SerializeToString())
        # Messages are serialized by who sends them; the stream's thread only passes bytes on.
        method = self.channel.stream_stream(f"/{PACKAGE}.KvCache/Session", request_serializer=bytes,
                                            response_deserializer=ServerMessage.FromString)
        self._call = method(self._messages())
        self.handoff.start(self._handoff_ended)
        threading.Thread(target=self._read, name="kvstreamd-session", daemon=True).start()

    def _messages(self) -> Iterator[bytes]:
        while True:
            data = self._outgoing.get()
            if data is _FORGOTTEN:
                self.abandon(errors.Unavailable("use session: nobody has its client any more"))
            if not isinstance(data, bytes):
                return
            yield data

    def _give_up(self) -> None:
        """Ends a session that was not opened: no memory went to the daemon, so nothing of it has to
        be waited for."""
        self.abandon(errors.Unavailable("open session: given up"))
        self.handoff.shut_down()

    # ------------------------------------------------------------ memory

    def hold(self, region: object, tensors: Any) -> None:
        """Keeps what a region lies in alive until `let_go` or the session's end. Raises
        SessionLost."""
        self.check_process()
        with self._lock:
            self._check_alive()
            self._held[region] = tensors

    def let_go(self, region: object) -> None:
        """The daemon has closed the region, or has never opened it."""
        with self._lock:
            self._held.pop(region, None)

    # ------------------------------------------------------------ operations

    def next_operation_id(self) -> int:
        """Never 0, never the same again."""
        return next(self._ids)

    def begin(self, operation: Operation, client_message: Any) -> None:
        """Keeps the operation and sends the message that begins it. Raises SessionLost,
        ResourceExhausted, InvalidArgument for a message that is too large; then nothing has
        begun."""
        self.check_process()
        data = client_message.SerializeToString()
        most = self.opened.limits.message_bytes_max
        if len(data) > most:  # It would end the whole session.
            raise errors.InvalidArgument(
                f"begin operation: its message has {len(data)} bytes, more than {most}")
        with self._lock:
            self._check_alive()
            self._operations[operation.id] = operation
        try:
            self.send(data)
        except KVStreamError:
            with self._lock:
                removed = self._operations.pop(operation.id, None)
            # One that ended meanwhile, with its session, has told its futures: it has begun.
            if removed is not None:
                raise

    def send(self, data: bytes, bounded: bool = True) -> None:
        """Queues a serialized message; never blocks. Raises SessionLost and, unless it is to go
        into a full queue too, ResourceExhausted."""
        self.check_process()
        with self._lock:
            self._check_alive()
            if bounded and self._outgoing.qsize() >= QUEUED_MESSAGES_MAX:
                raise errors.ResourceExhausted(
                    f"send on session stream: {QUEUED_MESSAGES_MAX} messages wait already")
            self._outgoing.put(data)

    def cancel(self, operation_id: int) -> None:
        """Asks for an operation's early end; a session that is lost ends it anyway."""
        client_message = ClientMessage()
        client_message.cancel.operation_id = operation_id
        self._send_for_cleanup(client_message)

    def release(self, lease_id: int) -> None:
        """Gives a lease back; a session that is lost has no leases."""
        client_message = ClientMessage()
        client_message.release.lease_id = lease_id
        self._send_for_cleanup(client_message)

    def _send_for_cleanup(self, client_message: Any) -> None:
        # Callers clean up with it, where a failure would hide the cause. There are no more of them
        # than operations and leases, so the queue need not bound them.
        try:
            self.send(client_message.SerializeToString(), bounded=False)
        except errors.SessionLost:
            pass

    # ------------------------------------------------------------ unary calls

    def _method(self, service: str, name: str, reply: str | None = None) -> Any:
        """The callable of a unary call, made once."""
        found = self._methods.get(name)
        if found is None:
            found = self._methods[name] = self.channel.unary_unary(
                f"/{PACKAGE}.{service}/{name}", request_serializer=serialized,
                response_deserializer=message(reply or f"{name}Reply").FromString)
        return found

    def call(self, name: str, request: Any, timeout_s: float, operation: str, *,
             service: str = "KvCache", reply: str | None = None) -> Any:
        """A unary call. Raises the daemon's word, BootChanged, SessionLost."""
        self.check()
        try:
            return self.check_boot(
                self._method(service, name, reply)(request, timeout=timeout_s))
        except (grpc.RpcError, ValueError) as error:
            raise self._failure(error, operation) from None

    def start(self, name: str, request: Any, timeout_s: float, operation: str,
              settle: Callable[[Any, KVStreamError | None], None]) -> None:
        """Begins a call of the data service; `settle` is called once, with its reply or its error.
        Raises SessionLost."""
        def done(call: Any) -> None:
            try:
                settle(self.check_boot(call.result()), None)
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                settle(None, self._failure(error, operation))
            except KVStreamError as error:
                settle(None, error)
        self.check()
        try:
            call = self._method("KvCache", name).future(request, timeout=timeout_s)
        except ValueError as error:
            raise self._failure(error, operation) from None
        call.add_done_callback(done)

    def _failure(self, error: Exception, operation: str) -> KVStreamError:
        """The error for a call that failed. What ends with the session says so: gRPC calls it
        cancelled, or raises ValueError once the channel is closed."""
        if isinstance(error, grpc.RpcError) and not (
                self.lost and error.code() in _ENDED_WITH_SESSION):
            return from_rpc(error, operation)
        return _lost(self._cause or errors.Unavailable(f"{operation}: {error}"))

    def hand_off(self, request: Any, fd: int | None, timeout_s: float) -> Any:
        """The reply to a HandoffRequest, on which `fd` rides. Raises the daemon's word,
        SessionLost."""
        self.check()
        try:
            return self.handoff.call(request, fd, timeout_s)
        except errors.Unavailable:
            self.check()
            raise

    def check_boot(self, reply: Any) -> Any:
        """The reply, of this session's boot. Raises BootChanged, and gives the session up."""
        if reply.boot_id != self.boot_id:
            error = errors.BootChanged("use session: another boot of the daemon answers")
            self.abandon(error)
            raise error
        return reply

    # ------------------------------------------------------------ the end

    def check(self) -> None:
        """Raises SessionLost when the session is lost, FailedPrecondition in a forked child."""
        self.check_process()
        with self._lock:
            self._check_alive()

    def check_process(self) -> None:
        """Raises FailedPrecondition in a forked child: it has copies of locks that nobody will
        release, and of a socket that is its parent's to speak on."""
        if self._forked():
            raise errors.FailedPrecondition(
                "use session: it is the parent's; a forked process makes a client of its own")

    def _forked(self) -> bool:
        return os.getpid() != self._process

    def _check_alive(self) -> None:
        if self._cause is not None:
            raise _lost(self._cause)

    @property
    def lost(self) -> bool:
        """Whether the session has ended or is about to."""
        return self._cause is not None

    def abandon(self, cause: KVStreamError) -> None:
        """Begins the session's end without waiting for it. Nothing in a forked child."""
        if self._forked():
            return
        with self._lock:
            if self._cause is None:
                self._cause = cause
        self._call.cancel()
        self.handoff.half_close()

    def forget(self) -> None:
        """As `abandon`, later, by another thread: may be called where the garbage collector runs,
        amid anything, so it takes no lock."""
        self._outgoing.put(_FORGOTTEN)

    def close(self, timeout_s: float) -> None:
        """Ends the session. Raises DeadlineExceeded when the daemon has not let go of the memory:
        then it is in use until the daemon is gone. Idempotent; nothing in a forked child."""
        if self._forked():
            return
        self.abandon(errors.Unavailable("use session: the client closed it"))
        if not self._over.wait(timeout_s):
            raise errors.DeadlineExceeded(
                "close session: the daemon has not let go of its memory")

    def _handoff_ended(self) -> None:
        self._end_half("handoff", errors.Unavailable(
            "use session: the daemon closed the handoff connection"))
        self._call.cancel()

    def _end_half(self, half: str, cause: KVStreamError) -> None:
        with self._lock:
            if self._cause is None:
                self._cause = cause
            self._halves_open.discard(half)
            left: list[Operation] = []
            if not self._halves_open:
                left = list(self._operations.values())
                self._operations.clear()
                self._held.clear()
            error = _lost(self._cause)
            # Decided once: of two halves that end together one is the last.
            last = not self._halves_open
        self._outgoing.put(None)
        self._settled.set()
        for operation in left:
            operation.end(error)
        if last:
            self.channel.close()
            self._over.set()

    # ------------------------------------------------------------ the stream's thread

    def _read(self) -> None:
        cause: KVStreamError = errors.Unavailable("use session: the daemon ended the stream")
        try:
            for server_message in self._call:
                for event in server_message.events:
                    self._on_event(event)
        except grpc.RpcError as error:
            cause = from_rpc(error, "use session")
        except Exception as error:  # Whatever it was: no event may be lost in silence.
            cause = errors.Unavailable(f"use session: an event was not understood: {error!r}")
            self._call.cancel()
        self._end_half("stream", cause)
        self.handoff.half_close()

    def _on_event(self, event: Any) -> None:
        kind = event.WhichOneof("event")
        handler = _HANDLERS.get(kind)
        if handler is not None:
            handler(self, kind, getattr(event, kind))

    def _on_opened(self, _: str, event: Any) -> None:
        if self.opened is None:
            self.opened = event
            self._settled.set()

    def _on_progress(self, kind: str, event: Any) -> None:
        with self._lock:
            operation = self._operations.get(event.operation_id)
        if operation is not None:
            operation.on_event(kind, event)

    def _on_quiesced(self, _: str, event: Any) -> None:
        with self._lock:
            operation = self._operations.pop(event.operation_id, None)
        if operation is not None:
            operation.end(errors.from_code(event.code, f"run operation {event.operation_id}",
                                           event.message))


# Outcomes of single chunks are in RequestDone as well.
_HANDLERS: dict[str, Callable[[Session, str, Any], None]] = {
    "session_opened": Session._on_opened,
    "request_done": Session._on_progress,
    "store_released": Session._on_progress,
    "store_durable": Session._on_progress,
    "quiesced": Session._on_quiesced,
}


def _lost(cause: KVStreamError) -> errors.SessionLost:
    """A new one each time: an exception that is raised again keeps its old traceback."""
    if isinstance(cause, errors.BootChanged):
        return errors.BootChanged(str(cause))
    return errors.SessionLost(str(cause))
