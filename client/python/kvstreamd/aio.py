"""The client for asyncio: AsyncClient does what Client does, and awaits instead of blocking.

    async with await aio.AsyncClient.connect(socket) as client:
        namespace = await client.register_namespace(description)
        found = await client.lookup(namespace, hashes)

Operations begin at once, without awaiting, since that never blocks. A task that is cancelled while
it awaits an operation leaves the operation running and its memory IN USE: `cancel` asks the daemon,
and only `ended` says that the memory is free.

Thread rule: an operation is awaited on one event loop; everything else as Client.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kvstreamd import errors
from kvstreamd.client import Client
from kvstreamd.errors import KVStreamError
from kvstreamd.identity import Namespace, NamespaceDescription
from kvstreamd.memory import HostBuffer
from kvstreamd.operations import (Operation, ReadOperation, RequestOutcome, StoredChunk,
                                  StoreOperation)
from kvstreamd.regions import Region
from kvstreamd.requests import ChunkAt, LookupResult, ReadRequest

T = TypeVar("T")


async def _when(future: concurrent.futures.Future[T]) -> T:
    """The future's value. It cannot be cancelled, so that a cancelled task does not end it."""
    return await asyncio.wrap_future(future)


class AsyncOperation:
    """An operation that is awaited; `operation` is the Client's own."""

    def __init__(self, operation: Operation):
        self.operation = operation

    def cancel(self) -> None:
        """As Operation.cancel."""
        self.operation.cancel()

    def done(self) -> bool:
        """Whether it has ended."""
        return self.operation.done()

    async def ended(self, timeout_s: float | None = None) -> KVStreamError | None:
        """Its end: the first failure, None when everything succeeded. StillRunning when it has not
        ended in time, here as in all waits: `timeout_s`, or Operation.patience_s."""
        return await self._wait(self.operation.ended, timeout_s)

    async def result(self, timeout_s: float | None = None) -> Any:
        """As Operation.result: raises the first failure, StillRunning when it has not ended."""
        await self._wait(self.operation.ended, timeout_s)
        return self.operation.result(0)

    async def _wait(self, future: concurrent.futures.Future[T], timeout_s: float | None) -> T:
        """The future's value. StillRunning when it is not set within `timeout_s`, by default the
        operation's deadline and the client's call timeout; its memory is in use then."""
        # With no time at all asyncio gives up on what it has not begun to wait for.
        if future.done():
            return future.result()
        patience_s = self.operation.patience_s if timeout_s is None else timeout_s
        try:
            return await asyncio.wait_for(_when(future), patience_s)
        except asyncio.TimeoutError:
            raise errors.StillRunning(
                f"wait for operation {self.operation.id}: it has not come so far") from None


class AsyncReadOperation(AsyncOperation):
    """A step that loads."""

    operation: ReadOperation

    async def request(self, index: int, timeout_s: float | None = None) -> RequestOutcome:
        """The outcome of one request, as soon as it is known."""
        return await self._wait(self.operation.requests[index], timeout_s)


class AsyncStoreOperation(AsyncOperation):
    """A store."""

    operation: StoreOperation

    async def released(self, timeout_s: float | None = None) -> list[StoredChunk]:
        """Once the daemon no longer reads the source memory."""
        return await self._wait(self.operation.released, timeout_s)

    async def durable(self, timeout_s: float | None = None) -> list[StoredChunk]:
        """Once every chunk is published or will not be. FailedPrecondition if the store was begun
        without `durable`."""
        if self.operation.durable is None:
            raise errors.FailedPrecondition("wait until durable: the store did not ask for it")
        return await self._wait(self.operation.durable, timeout_s)


class AsyncClient:
    """Made by `connect`, with the arguments and errors of Client; so are its methods'. What blocks
    there runs on the event loop's executor here."""

    def __init__(self, client: Client):
        self.client = client

    @classmethod
    async def connect(cls, socket: str, **options: Any) -> "AsyncClient":
        """Opens a session; options as of Client. Cancelled, it opens none: what the thread makes
        meanwhile nobody has, and it ends its session."""
        return cls(await asyncio.to_thread(Client, socket, **options))

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As Client.close."""
        await asyncio.to_thread(self.client.close)

    async def reconnect(self) -> bool:
        """As Client.reconnect."""
        return await asyncio.to_thread(self.client.reconnect)

    async def status(self, timeout_s: float | None = None) -> Any:
        """As Client.status."""
        return await asyncio.to_thread(self.client.status, timeout_s)

    async def register_namespace(self, description: NamespaceDescription,
                                 local_shards: Mapping[int, Sequence[int]] | None = None
                                 ) -> Namespace:
        """As Client.register_namespace."""
        return await asyncio.to_thread(self.client.register_namespace, description, local_shards)

    async def create_host_buffer(self, nbytes: int) -> HostBuffer:
        """As Client.create_host_buffer."""
        return await asyncio.to_thread(self.client.create_host_buffer, nbytes)

    async def drop_host_buffer(self, buffer: HostBuffer) -> None:
        """As Client.drop_host_buffer."""
        await asyncio.to_thread(self.client.drop_host_buffer, buffer)

    async def register_region(self, tensors: Sequence[Any], *,
                              block_dim: int | Sequence[int] = 0) -> Region:
        """As Client.register_region."""
        return await asyncio.to_thread(self.client.register_region, tensors, block_dim=block_dim)

    async def unregister_region(self, region: Region) -> None:
        """As Client.unregister_region."""
        await asyncio.to_thread(self.client.unregister_region, region)

    async def lookup(self, namespace: Namespace, prefix_hashes: Iterable[bytes],
                     **options: Any) -> LookupResult:
        """As Client.lookup; no thread waits for it."""
        return await _when(self.client.start_lookup(namespace, prefix_hashes, **options))

    def release(self, lease_id: int) -> None:
        """As Client.release."""
        self.client.release(lease_id)

    def read_step(self, step: Sequence[ReadRequest], **options: Any) -> AsyncReadOperation:
        """As Client.read_step."""
        return AsyncReadOperation(self.client.read_step(step, **options))

    def store(self, namespace: Namespace, chunks: Sequence[ChunkAt],
              **options: Any) -> AsyncStoreOperation:
        """As Client.store."""
        return AsyncStoreOperation(self.client.store(namespace, chunks, **options))

    def prefetch(self, namespace: Namespace, chunks: Iterable[ChunkAt],
                 **options: Any) -> AsyncOperation:
        """As Client.prefetch."""
        return AsyncOperation(self.client.prefetch(namespace, chunks, **options))

    def forward_began(self, step_id: int = 0) -> None:
        """As Client.forward_began."""
        self.client.forward_began(step_id)
