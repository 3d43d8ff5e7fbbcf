"""The client of kvstreamd: a session with the daemon of this node.

Thread rule: any thread. Calls block for at most their timeout; operations run by themselves. No
blocking call from a future's callback. Not across a fork: make the client in the child, where every
call of the parent's raises FailedPrecondition, and `close` leaves it to the parent.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvstreamd import cuda, errors, requests
from kvstreamd.identity import Namespace, NamespaceDescription
from kvstreamd.memory import Binding, Bound, HostBuffer
from kvstreamd.operations import Operation, ReadOperation, StoreOperation, running_future
from kvstreamd.protocol import (ClientMessage, GetStatusRequest, HandoffRequest,
                                RegisterMemoryRequest, RegisterNamespaceRequest,
                                UnregisterMemoryRequest)
from kvstreamd.regions import Region, region_of
from kvstreamd.requests import ChunkAt, LookupResult, Mode, ReadRequest
from kvstreamd.session import Session


class Client:
    """Connects to the daemon whose gRPC socket is at `socket`.

    `handoff_socket` is by default `socket` with ".handoff" appended; `client_name` is for the
    daemon's logs, such as "vllm-0/rank3", at most 128 bytes. A call that blocks takes at most
    `call_timeout_s`, connecting at most `connect_timeout_s`. An operation without a `deadline_ms`
    of its own has that of the client.

    Raises NotFound when no socket is there, PermissionDenied when it may not be used,
    FailedPrecondition when the daemon speaks another protocol version, Unavailable when nobody
    listens, DeadlineExceeded when the daemon does not answer in time.

    When the daemon goes away operations end with SessionLost, and so does every call until
    `reconnect`, which registers anew what was registered.

    A client that nobody has any more ends its session, and with it the operations. Tensors of
    regions stay alive until the daemon has let go of them, also where `close` has failed."""

    def __init__(self, socket: str, *, handoff_socket: str = "", client_name: str = "",
                 connect_timeout_s: float = 2.0, call_timeout_s: float = 10.0,
                 deadline_ms: int = 10_000):
        self._socket = socket
        self._handoff_socket = handoff_socket or socket + ".handoff"
        self._client_name = client_name
        self._connect_timeout_s = connect_timeout_s
        self._call_timeout_s = call_timeout_s
        self._deadline_ms = deadline_ms
        # Held by whoever changes what is registered.
        self._lock = threading.RLock()
        # In the order of their registration.
        self._namespaces: dict[Namespace, None] = {}
        self._buffers: dict[HostBuffer, None] = {}
        self._regions: dict[Region, None] = {}
        self._use(self._connect())

    def _connect(self) -> Session:
        return Session(self._socket, self._handoff_socket, self._client_name,
                       self._connect_timeout_s)

    def _use(self, session: Session) -> None:
        self._session = session
        self._forget = weakref.finalize(self, session.forget)
        # The kernel tells the daemon of a process's end.
        self._forget.atexit = False

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ the session

    @property
    def session(self) -> Session:
        """The session as it is now."""
        return self._session

    @property
    def lost(self) -> bool:
        """Whether the session has ended; `reconnect` is the way on."""
        return self._session.lost

    @property
    def boot_id(self) -> bytes:
        """The boot of the daemon that the session is with, 16 bytes."""
        return self._session.boot_id

    @property
    def session_id(self) -> int:
        """The session's number, never 0."""
        return self._session.opened.session_id

    @property
    def limits(self) -> Any:
        """The daemon's kvstream.v1.Limits."""
        return self._session.opened.limits

    @property
    def daemon_version(self) -> str:
        """Such as "0.1.0"."""
        return self._session.opened.daemon_version

    def close(self) -> None:
        """Ends the session; operations that have not ended end with SessionLost. Raises
        DeadlineExceeded when the daemon has not let go within the call timeout: memory that was
        registered is in use until it is gone. Idempotent."""
        self._session.close(self._call_timeout_s)

    def reconnect(self) -> bool:
        """Opens a new session and registers buffers, namespaces and regions with it: the handles
        stay, with new numbers, and buffers keep their bytes. True when this call has gone over to
        another boot of the daemon. A session that the daemon still answers is kept, as where
        another thread has reconnected already: then nothing is done, and it is False. Operations
        and leases of the old session are gone. Raises as the constructor and the registrations
        do; DeadlineExceeded when the old session's daemon has not let go of the memory yet. Then
        the session is lost as before, every call says so, and it may be tried again."""
        with self._changing():
            old = self._session
            if self._answers():
                return False
            old.close(self._call_timeout_s)
            new = self._connect()
            try:
                numbers: dict[Bound, int] = {
                    **{buffer: self._attach(new, buffer) for buffer in self._buffers},
                    **{region: self._open_region(new, region) for region in self._regions}}
                named = {space: self._register(new, space) for space in self._namespaces}
            except BaseException:
                new.abandon(errors.Unavailable("use session: what it needs was not registered"))
                raise
            # Only now, so that a handle is never of a session that nobody uses; and before the
            # session, with which others would find handles of the old one.
            for bound, number in numbers.items():
                bound.binding = Binding(new, number)
            for namespace, reply in named.items():
                namespace.bind(new, reply)
            self._forget.detach()
            self._use(new)
            return new.boot_id != old.boot_id

    def _answers(self) -> bool:
        """Whether the session lives, as far as its daemon says."""
        try:
            self.status()
        except errors.KVStreamError:
            return False
        return not self.lost

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """For whoever changes what is registered, or with which session. DeadlineExceeded when
        another thread does so for longer than a call may take, as a reconnect may."""
        self._session.check_process()
        if not self._lock.acquire(timeout=self._call_timeout_s):
            raise errors.DeadlineExceeded("change registrations: another thread is at it")
        try:
            yield
        finally:
            self._lock.release()

    def status(self, timeout_s: float | None = None) -> Any:
        """The daemon's kvstream.v1.Status (admin.proto)."""
        return self._session.call(
            "GetStatus", GetStatusRequest(), self._timeout_s(timeout_s), "get status",
            service="Admin", reply="Status")

    # ------------------------------------------------------------ registrations

    def register_namespace(self, description: NamespaceDescription,
                           local_shards: Mapping[int, Sequence[int]] | None = None) -> Namespace:
        """Names the bytes of a model; idempotent: the same gets the same handle. `local_shards`:
        for each group the shards whose ranks run on this node, which lookups ask for; by default
        all. Raises InvalidArgument and names the field, ResourceExhausted when there are too
        many."""
        namespace = Namespace(description, local_shards or {})
        with self._changing():
            session = self._session
            namespace.bind(session, self._register(session, namespace))
            for known in self._namespaces:
                if (known.id, known.local_shards) == (namespace.id, namespace.local_shards):
                    return known
            self._namespaces[namespace] = None
        return namespace

    def _register(self, session: Session, namespace: Namespace) -> Any:
        request = RegisterNamespaceRequest(namespace=namespace.description.to_message())
        for group, shards in namespace.local_shards.items():
            request.local_shards.add(group=group, shards=shards)
        return session.call("RegisterNamespace", request, self._call_timeout_s,
                            f"register namespace {namespace.description.model}")

    def create_host_buffer(self, nbytes: int) -> HostBuffer:
        """Shared memory of `nbytes`, rounded up to 4096, zeroed. Raises InvalidArgument and
        ResourceExhausted past the limits of the session."""
        buffer = HostBuffer(nbytes)
        with self._changing():
            session = self._session
            buffer.binding = Binding(session, self._attach(session, buffer))
            self._buffers[buffer] = None
        return buffer

    def _attach(self, session: Session, buffer: HostBuffer) -> int:
        request = HandoffRequest()
        request.attach_host_buffer.bytes = buffer.nbytes
        reply = session.hand_off(request, buffer.fd, self._call_timeout_s)
        return reply.host_buffer.buffer_id

    def drop_host_buffer(self, buffer: HostBuffer) -> None:
        """Gives a buffer back; views of it stay valid for this process. Raises FailedPrecondition
        while operations use it."""
        with self._changing():
            session = self._session
            request = HandoffRequest()
            request.drop_host_buffer.buffer_id = buffer.number_in(session)
            session.hand_off(request, None, self._call_timeout_s)
            self._buffers.pop(buffer, None)
            buffer.binding = None

    def register_region(self, tensors: Sequence[Any], *, block_dim: int | Sequence[int] = 0
                        ) -> Region:
        """Opens the GPU memory of PyTorch tensors that lie in one allocation; a block of the region
        is the tensors' blocks in their order. `block_dim`: the dimension that counts blocks, of all
        or of each. Keeps the tensors alive. Raises InvalidArgument, FailedPrecondition (no GPU in
        the daemon; memory that no other process can map, with the setting to blame),
        ResourceExhausted."""
        region = region_of(tensors, block_dim)
        with self._changing():
            session = self._session
            region.binding = Binding(session, self._open_region(session, region))
            self._regions[region] = None
        return region

    def _open_region(self, session: Session, region: Region) -> int:
        pointer = min(tensor.data_ptr() for tensor in region.tensors)
        end = max(layout.offset + (layout.block_count - 1) * layout.block_stride
                  + sum(layout.runs[-1]) for layout in region.layouts)
        with cuda.share(pointer, end) as memory:
            request = RegisterMemoryRequest(
                session_id=session.opened.session_id, gpu_uuid=memory.gpu_uuid,
                allocation_bytes=memory.allocation_bytes, block_count=region.block_count)
            if memory.fd is None:
                request.cuda_ipc_handle = memory.ipc_handle
            else:
                offer = HandoffRequest()
                offer.attach_device_memory.gpu_uuid = memory.gpu_uuid
                offer.attach_device_memory.allocation_bytes = memory.allocation_bytes
                reply = session.hand_off(offer, memory.fd, self._call_timeout_s)
                request.handoff_memory_id = reply.device_memory.handoff_memory_id
        for layout in region.layouts:
            tensor = request.tensors.add(tensor_offset=memory.offset + layout.offset,
                                         block_stride=layout.block_stride)
            for offset, length in layout.runs:
                tensor.runs.add(offset=offset, length=length)
        session.hold(region, region.tensors)
        try:
            reply = session.call("RegisterMemory", request, self._call_timeout_s,
                                 f"register memory of {memory.gpu_uuid}")
        except (errors.DeadlineExceeded, errors.Unavailable):
            raise  # It may have been opened.
        except errors.KVStreamError:
            session.let_go(region)
            raise
        # Never by a landing buffer: this client registers none.
        return reply.region_id

    def unregister_region(self, region: Region) -> None:
        """Returns once the daemon has closed it: the memory may be freed. Raises FailedPrecondition
        while operations use it. After DeadlineExceeded it is open until the session's end."""
        with self._changing():
            session = self._session
            request = UnregisterMemoryRequest(session_id=session.opened.session_id,
                                              region_id=region.number_in(session))
            session.call("UnregisterMemory", request, self._call_timeout_s,
                         f"unregister {region}")
            session.let_go(region)
            self._regions.pop(region, None)
            region.binding = None

    # ------------------------------------------------------------ lookups

    def start_lookup(self, namespace: Namespace, prefix_hashes: Iterable[bytes], *,
                     salt: bytes = b"", groups: Sequence[int] = (), per_key: bool = False,
                     lease_ms: int = 0, timeout_s: float | None = None
                     ) -> concurrent.futures.Future[LookupResult]:
        """Begins a lookup of chunks in prefix order, all hashes of one length, 16 .. 64 bytes;
        its future has the result or raises. `groups`: those asked for, by default all. `per_key`:
        answer for every key, not up to the first that is missing. `lease_ms`: protect what is found
        from eviction for so long. Raises SessionLost, InvalidArgument at once; the future the
        daemon's word."""
        session = self._session
        request = requests.lookup_request(session, namespace, prefix_hashes, salt=salt,
                                          groups=groups, per_key=per_key, lease_ms=lease_ms)
        future: concurrent.futures.Future[LookupResult] = running_future()

        def settle(reply: Any, error: errors.KVStreamError | None) -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(requests.lookup_result(reply))
        session.start("Lookup", request, self._timeout_s(timeout_s), "look up chunks", settle)
        return future

    def lookup(self, namespace: Namespace, prefix_hashes: Iterable[bytes], *, salt: bytes = b"",
               groups: Sequence[int] = (), per_key: bool = False, lease_ms: int = 0,
               timeout_s: float | None = None) -> LookupResult:
        """As start_lookup; waits for the result."""
        session = self._session
        request = requests.lookup_request(session, namespace, prefix_hashes, salt=salt,
                                          groups=groups, per_key=per_key, lease_ms=lease_ms)
        return requests.lookup_result(session.call(
            "Lookup", request, self._timeout_s(timeout_s), "look up chunks"))

    def release(self, lease_id: int) -> None:
        """Gives back the lease of a lookup; never blocks, and does nothing where the session is
        lost. Idempotent; 0 is no lease."""
        if lease_id:
            self._session.release(lease_id)

    # ------------------------------------------------------------ operations

    def read_step(self, step: Sequence[ReadRequest], *, mode: Mode = Mode.JOINT,
                  deadline_ms: int | None = None, step_id: int = 0, ranks: int = 0,
                  join_timeout_ms: int = 0) -> ReadOperation:
        """Begins to load chunks, requests in the order in which they matter; never blocks. Ranks
        that load one step together name it with `step_id`, say how many they are, and for how long
        to wait for the others (0: not at all). Destinations of one step must not overlap. What the
        daemon refuses ends the operation with the reason. Raises SessionLost, ResourceExhausted,
        InvalidArgument, FailedPrecondition for another session's memory: nothing has begun then."""
        session, deadline = self._session, self._deadline(deadline_ms)
        operation_id = session.next_operation_id()
        client_message = requests.read_step_message(
            session, operation_id, step, mode=mode, step_id=step_id, ranks=ranks,
            join_timeout_ms=join_timeout_ms, deadline_ms=deadline)
        operation = ReadOperation(operation_id, session.cancel, self._patience_s(deadline),
                                  [request.request_id for request in step])
        session.begin(operation, client_message)
        return operation

    def store(self, namespace: Namespace, chunks: Sequence[ChunkAt], *, salt: bytes = b"",
              deadline_ms: int | None = None, admission_ms: int = 0, durable: bool = False,
              after_prefix_hash: bytes = b"") -> StoreOperation:
        """Begins to keep chunks, in prefix order; never blocks. The source memory is in use until
        `released`. Chunks that find no room within `admission_ms` are dropped, a later miss.
        `durable`: also wait until they are published. `after_prefix_hash`: of what comes right
        before the first of them. Raises as read_step."""
        session, deadline = self._session, self._deadline(deadline_ms)
        operation_id = session.next_operation_id()
        client_message = requests.chunks_message(
            session, "store", operation_id, namespace, chunks, salt=salt, deadline_ms=deadline,
            admission_ms=admission_ms, want_durable=durable, after_prefix_hash=after_prefix_hash)
        operation = StoreOperation(operation_id, session.cancel, self._patience_s(deadline),
                                   len(chunks), durable)
        session.begin(operation, client_message)
        return operation

    def prefetch(self, namespace: Namespace, chunks: Iterable[ChunkAt], *, keep_ms: int,
                 salt: bytes = b"") -> Operation:
        """Asks that chunks be brought into the staging pool, and be kept there unused for
        `keep_ms`; placements may be None. Never blocks. Raises as read_step."""
        session = self._session
        operation_id = session.next_operation_id()
        client_message = requests.chunks_message(session, "prefetch", operation_id, namespace,
                                                 chunks, salt=salt, keep_ms=keep_ms)
        operation = Operation(operation_id, session.cancel, self._patience_s(keep_ms))
        session.begin(operation, client_message)
        return operation

    def forward_began(self, step_id: int = 0) -> None:
        """Hints that the engine computes now, so that deferred writes may start; never blocks."""
        client_message = ClientMessage()
        client_message.forward_began.step_id = step_id
        self._session.send(client_message.SerializeToString())

    def _deadline(self, deadline_ms: int | None) -> int:
        return self._deadline_ms if deadline_ms is None else deadline_ms

    def _timeout_s(self, timeout_s: float | None) -> float:
        return self._call_timeout_s if timeout_s is None else timeout_s

    def _patience_s(self, deadline_ms: int) -> float:
        return deadline_ms / 1000 + self._call_timeout_s
