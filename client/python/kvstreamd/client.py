"""The client of kvstreamd: a session with the daemon of this node.

Thread rule: any thread. Calls block for at most their timeout; operations run by themselves. No
blocking call from a future's callback. Not across a fork: make the client in the child.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import grpc

from kvstreamd import cuda, errors, requests
from kvstreamd.identity import Namespace, NamespaceDescription
from kvstreamd.memory import Binding, HostBuffer
from kvstreamd.operations import Operation, ReadOperation, StoreOperation, running_future
from kvstreamd.protocol import (ClientMessage, GetStatusRequest, HandoffRequest,
                                RegisterMemoryReply, RegisterMemoryRequest,
                                RegisterNamespaceRequest, UnregisterMemoryRequest)
from kvstreamd.regions import Region, block_layout
from kvstreamd.requests import ChunkAt, LookupResult, Mode, ReadRequest
from kvstreamd.session import Session, from_rpc


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
    `reconnect`, which registers anew what was registered."""

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
        self._session = self._connect()

    def _connect(self) -> Session:
        return Session(self._socket, self._handoff_socket, self._client_name,
                       self._connect_timeout_s)

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
        stay, with new numbers, and buffers keep their bytes. True when it is another boot of the
        daemon. Operations and leases of the old session are gone. Raises as the constructor and
        the registrations do; DeadlineExceeded when the old session's daemon has not let go of the
        memory yet. Then everything is as it was, but for the old session, and it may be tried
        again."""
        with self._lock:
            old = self._session
            old.close(self._call_timeout_s)
            new = self._connect()
            try:
                for buffer in self._buffers:
                    self._attach(new, buffer)
                for namespace in self._namespaces:
                    self._register(new, namespace)
                for region in self._regions:
                    self._open_region(new, region)
            except errors.KVStreamError:
                new.abandon(errors.Unavailable("use session: what it needs was not registered"))
                raise
            self._session = new
            return new.boot_id != old.boot_id

    def status(self, timeout_s: float | None = None) -> Any:
        """The daemon's kvstream.v1.Status (admin.proto)."""
        session = self._session
        session.check()
        try:
            reply = session.method("Admin", "GetStatus", "Status")(
                GetStatusRequest(), timeout=timeout_s or self._call_timeout_s)
        except grpc.RpcError as error:
            raise from_rpc(error, "get status") from None
        return session.check_boot(reply)

    # ------------------------------------------------------------ registrations

    def register_namespace(self, description: NamespaceDescription,
                           local_shards: Mapping[int, Sequence[int]] | None = None) -> Namespace:
        """Names the bytes of a model; idempotent. `local_shards`: for each group the shards whose
        ranks run on this node, which lookups ask for; by default all. Raises InvalidArgument and
        names the field, ResourceExhausted when there are too many."""
        namespace = Namespace(description, dict(local_shards or {}))
        with self._lock:
            self._register(self._session, namespace)
            self._namespaces[namespace] = None
        return namespace

    def _register(self, session: Session, namespace: Namespace) -> None:
        request = RegisterNamespaceRequest(namespace=namespace.description.to_message())
        for group, shards in namespace.local_shards.items():
            request.local_shards.add(group=group, shards=shards)
        reply = session.call("RegisterNamespace", request, self._call_timeout_s,
                             f"register namespace {namespace.description.model}")
        namespace.id, namespace.segment_bytes = reply.namespace_id, reply.segment_bytes
        namespace.binding = Binding(session, 0)

    def create_host_buffer(self, nbytes: int) -> HostBuffer:
        """Shared memory of `nbytes`, rounded up to 4096, zeroed. Raises InvalidArgument and
        ResourceExhausted past the limits of the session."""
        buffer = HostBuffer(nbytes)
        with self._lock:
            self._attach(self._session, buffer)
            self._buffers[buffer] = None
        return buffer

    def _attach(self, session: Session, buffer: HostBuffer) -> None:
        session.check()
        request = HandoffRequest()
        request.attach_host_buffer.bytes = buffer.nbytes
        reply = session.handoff.call(request, buffer.fd, self._call_timeout_s)
        buffer.binding = Binding(session, reply.host_buffer.buffer_id)

    def drop_host_buffer(self, buffer: HostBuffer) -> None:
        """Gives a buffer back; views of it stay valid for this process. Raises FailedPrecondition
        while operations use it."""
        with self._lock:
            session = self._session
            request = HandoffRequest()
            request.drop_host_buffer.buffer_id = buffer.number_in(session)
            session.handoff.call(request, None, self._call_timeout_s)
            self._buffers.pop(buffer, None)
            buffer.binding = None

    def register_region(self, tensors: Sequence[Any], *, block_dim: int | Sequence[int] = 0
                        ) -> Region:
        """Opens the GPU memory of PyTorch tensors that lie in one allocation; a block of the region
        is the tensors' blocks in their order. `block_dim`: the dimension that counts blocks, of all
        or of each. Keeps the tensors alive. Raises InvalidArgument, FailedPrecondition (no GPU in
        the daemon; memory that no other process can map, with the setting to blame), Unimplemented
        where the daemon would use a landing buffer, ResourceExhausted."""
        dims = [block_dim] * len(tensors) if isinstance(block_dim, int) else list(block_dim)
        if not tensors or len(dims) != len(tensors):
            raise errors.InvalidArgument(
                f"register region: {len(tensors)} tensors, {len(dims)} block dimensions")
        base = min(tensor.data_ptr() for tensor in tensors)
        layouts = [block_layout(tuple(t.shape), tuple(t.stride()), t.element_size(),
                                block_dim=dim, offset=t.data_ptr() - base)
                   for t, dim in zip(tensors, dims)]
        if len({layout.block_count for layout in layouts}) != 1:
            raise errors.InvalidArgument("register region: the tensors' block counts differ")
        region = Region(layouts, tensors)
        with self._lock:
            self._open_region(self._session, region)
            self._regions[region] = None
        return region

    def _open_region(self, session: Session, region: Region) -> None:
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
                reply = session.handoff.call(offer, memory.fd, self._call_timeout_s)
                request.handoff_memory_id = reply.device_memory.handoff_memory_id
        for layout in region.layouts:
            tensor = request.tensors.add(tensor_offset=memory.offset + layout.offset,
                                         block_stride=layout.block_stride)
            for offset, length in layout.runs:
                tensor.runs.add(offset=offset, length=length)
        reply = session.call("RegisterMemory", request, self._call_timeout_s,
                             f"register memory of {memory.gpu_uuid}")
        region.binding = Binding(session, reply.region_id)
        if RegisterMemoryReply.WAY_LANDING in (reply.way, reply.store_way):
            self._close_region(session, region)
            raise errors.Unimplemented(
                "register region: its runs are so short that the daemon uses a landing buffer, "
                "which this client does not serve")

    def _close_region(self, session: Session, region: Region) -> None:
        request = UnregisterMemoryRequest(session_id=session.opened.session_id,
                                          region_id=region.number_in(session))
        session.call("UnregisterMemory", request, self._call_timeout_s, f"unregister {region}")
        region.binding = None

    def unregister_region(self, region: Region) -> None:
        """Returns once the daemon has closed it: the memory may be freed. Raises FailedPrecondition
        while operations use it. After DeadlineExceeded it is open until the session's end."""
        with self._lock:
            self._close_region(self._session, region)
            self._regions.pop(region, None)

    # ------------------------------------------------------------ lookups

    def start_lookup(self, namespace: Namespace, prefix_hashes: Iterable[bytes], *,
                     salt: bytes = b"", groups: Sequence[int] = (), per_key: bool = False,
                     lease_ms: int = 0, timeout_s: float | None = None
                     ) -> concurrent.futures.Future[LookupResult]:
        """Begins a lookup of chunks in prefix order, each key 16 .. 64 bytes; its future has the
        result or raises. `groups`: those asked for, by default all. `per_key`: answer for every
        key, not up to the first that is missing. `lease_ms`: protect what is found from eviction
        for so long. Raises SessionLost, InvalidArgument at once; the future the daemon's word."""
        session = self._session
        request = requests.lookup_request(session, namespace, prefix_hashes, salt=salt,
                                          groups=groups, per_key=per_key, lease_ms=lease_ms)
        session.check()
        future: concurrent.futures.Future[LookupResult] = running_future()
        call = session.method("KvCache", "Lookup").future(
            request, timeout=timeout_s or self._call_timeout_s)
        call.add_done_callback(lambda done: _settle(session, done, future))
        return future

    def lookup(self, namespace: Namespace, prefix_hashes: Iterable[bytes], *, salt: bytes = b"",
               groups: Sequence[int] = (), per_key: bool = False, lease_ms: int = 0,
               timeout_s: float | None = None) -> LookupResult:
        """As start_lookup; waits for the result."""
        session = self._session
        request = requests.lookup_request(session, namespace, prefix_hashes, salt=salt,
                                          groups=groups, per_key=per_key, lease_ms=lease_ms)
        return requests.lookup_result(session.call(
            "Lookup", request, timeout_s or self._call_timeout_s, "look up chunks"))

    def release(self, lease_id: int) -> None:
        """Gives back the lease of a lookup; never blocks. Idempotent; 0 is no lease."""
        if lease_id:
            client_message = ClientMessage()
            client_message.release.lease_id = lease_id
            self._session.send(client_message.SerializeToString())

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

    def _patience_s(self, deadline_ms: int) -> float:
        return deadline_ms / 1000 + self._call_timeout_s


def _settle(session: Session, call: Any, future: concurrent.futures.Future[LookupResult]) -> None:
    """Ends a lookup's future with what its call has ended with."""
    try:
        reply = session.check_boot(call.result())
        future.set_result(requests.lookup_result(reply))
    except grpc.RpcError as error:
        future.set_exception(from_rpc(error, "look up chunks"))
    except grpc.FutureCancelledError:
        future.set_exception(errors.SessionLost("look up chunks: the client closed the session"))
    except errors.KVStreamError as error:
        future.set_exception(error)
