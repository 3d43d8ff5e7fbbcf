"""The storage plugin of LMCache inside an engine, for whoever does not run LMCache's server.

Whole chunks alone are kept: of one that is not whole, nothing tells later how long it is. Needs the
package lmcache. Thread rule: any thread; what blocks says so. Ownership: an object of LMCache's is
held by its reference count until its store has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

from kvstreamd.identity import fingerprint_of
from kvstreamd.lmcache.core import Core
from kvstreamd.lmcache.log import logger
from kvstreamd.lmcache.names import ObjectName, Space
from kvstreamd.lmcache.options import Options
from kvstreamd.operations import running_future

# Of the options' names in LMCache's extra_config.
PREFIX = "kvstreamd."


def name_of(key: Any) -> ObjectName:
    """What a CacheEngineKey names."""
    space = Space(key.model_name, (
        ("keys", "engine"), ("world_size", str(key.world_size)), ("worker", str(key.worker_id)),
        ("dtype", str(key.dtype))))
    # Its hashes are numbers or bytes of any length, and its tags are who may share.
    return ObjectName(space, fingerprint_of(chunk_hash=key.chunk_hash_hex),
                      json.dumps(key.tags) if key.tags else "")


class KVStreamBackend(StoragePluginInterface):
    """A backend as LMCache makes them. ValueError for what it cannot serve."""

    def __init__(self, dst_device: str = "cpu", config: Any = None, metadata: Any = None,
                 local_cpu_backend: Any = None, loop: Any = None):
        super().__init__(dst_device=dst_device, config=config, metadata=metadata,
                         local_cpu_backend=local_cpu_backend, loop=loop)
        if config.use_layerwise:
            raise ValueError("kvstreamd: use_layerwise is not supported")
        extra = config.extra_config or {}
        options = Options.parse({name.removeprefix(PREFIX): value for name, value in extra.items()
                                 if name.startswith(PREFIX)})
        self._shapes, self._dtypes = metadata.get_shapes(), metadata.get_dtypes()
        self._format = MemoryFormat.KV_MLA_FMT if metadata.use_mla else MemoryFormat.KV_2LTD
        self._chunk_bytes = sum(shape.numel() * dtype.itemsize
                                for shape, dtype in zip(self._shapes, self._dtypes))
        self._lock = threading.Lock()
        self._storing: set[Any] = set()
        self._core = Core(options, f"lmcache-engine/{os.getpid()}/{metadata.worker_id}")

    def __str__(self) -> str:
        return "KVStreamBackend"

    # ------------------------------------------------------------ what is there

    def contains(self, key: Any, pin: bool = False) -> bool:
        """Blocks for a call. What is found is protected for lease_ms, pinned or not."""
        return self.batched_contains([key], pin) == 1

    def batched_contains(self, keys: Sequence[Any], pin: bool = False) -> int:
        """How many leading chunks are there. Blocks for a call."""
        return _leading(self._find(keys).result())

    async def batched_async_contains(self, lookup_id: str, keys: Sequence[Any],
                                     pin: bool = False) -> int:
        """As batched_contains, awaited."""
        return _leading(await asyncio.wrap_future(self._find(keys)))

    def pin(self, key: Any) -> bool:
        """Whether it is there; see contains."""
        return self.contains(key)

    def unpin(self, key: Any) -> bool:
        """Protection ends by itself."""
        return True

    def remove(self, key: Any, force: bool = True) -> bool:
        """Whether it is gone. Blocks for a call."""
        results: Future[list[bool]] = running_future()
        self._core.delete([name_of(key)], _settling(results))
        return results.result()[0]

    def _find(self, keys: Sequence[Any]) -> Future[list[bool]]:
        results: Future[list[bool]] = running_future()
        self._core.find([name_of(key) for key in keys], _settling(results))
        return results

    # ------------------------------------------------------------ loads

    def get_blocking(self, key: Any) -> MemoryObj | None:
        """Blocks for a load."""
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: Sequence[Any]) -> list[MemoryObj | None]:
        """All chunks that are there, None for the others. Blocks for a load."""
        memory = self._allocate(len(keys))
        return [*self._taken(memory, self._load(keys, memory).result()),
                *[None] * (len(keys) - len(memory))]

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any],
                                       transfer_spec: Any = None) -> list[MemoryObj]:
        """The leading chunks that are there."""
        memory = await asyncio.to_thread(self._allocate, len(keys))
        results = await asyncio.wrap_future(self._load(keys, memory))
        count = _leading(results)
        kept = [index < count for index in range(len(memory))]
        return [taken for taken in self._taken(memory, kept) if taken is not None]

    def _allocate(self, count: int) -> list[MemoryObj]:
        """Memory of LMCache's for as many chunks as it has; evicts other chunks for it."""
        memory = []
        for _ in range(count):
            made = self.local_cpu_backend.allocate(self._shapes, self._dtypes, self._format)
            if made is None:
                logger.warning("kvstreamd: LMCache has no memory for %d of %d chunks to load",
                               count - len(memory), count)
                break
            memory.append(made)
        return memory

    def _load(self, keys: Sequence[Any], memory: Sequence[MemoryObj]) -> Future[list[bool]]:
        results: Future[list[bool]] = running_future()
        self._core.load([name_of(key) for key in keys[:len(memory)]],
                        [made.byte_array for made in memory], _settling(results))
        return results

    def _taken(self, memory: Sequence[MemoryObj], kept: Sequence[bool]) -> list[MemoryObj | None]:
        for made, keep in zip(memory, kept):
            if not keep:
                made.ref_count_down()
        return [made if keep else None for made, keep in zip(memory, kept)]

    # ------------------------------------------------------------ stores

    def exists_in_put_tasks(self, key: Any) -> bool:
        """Whether it is being stored."""
        with self._lock:
            return key in self._storing

    def batched_submit_put_task(
            self, keys: Sequence[Any], objs: list[MemoryObj], transfer_spec: Any = None,
            on_complete_callback: Callable[[Any], None] | None = None) -> list[Future] | None:
        """Begins to store those that are whole chunks; never blocks. None where there are none."""
        with self._lock:
            new = {key: memory for key, memory in zip(keys, objs)
                   if memory.get_size() == self._chunk_bytes and key not in self._storing}
            self._storing |= new.keys()
        if not new:
            return None
        for memory in new.values():
            memory.ref_count_up()
        stored: Future[None] = running_future()

        def done(_good: bool, _error: str, results: list[bool]) -> None:
            with self._lock:
                self._storing -= new.keys()
            for (key, memory), kept in zip(new.items(), results):
                memory.ref_count_down()
                if kept and on_complete_callback is not None:
                    _call(on_complete_callback, key)
            stored.set_result(None)
        self._core.store([name_of(key) for key in new],
                         [memory.byte_array for memory in new.values()], done)
        return [stored]

    def get_allocator_backend(self) -> Any:
        """Whose memory loads fill."""
        return self.local_cpu_backend

    def close(self) -> None:
        """Ends what has not ended, and the session. Idempotent."""
        self._core.close()


def _settling(results: Future[list[bool]]) -> Callable[[bool, str, list[bool]], None]:
    return lambda _good, _error, each: results.set_result(each)


def _leading(results: Sequence[bool]) -> int:
    return next((index for index, good in enumerate(results) if not good), len(results))


def _call(callback: Callable[[Any], None], key: Any) -> None:
    try:
        callback(key)
    except Exception as error:  # Of whatever kind: it is LMCache's.
        logger.warning("kvstreamd: on_complete_callback failed: %s", error)
