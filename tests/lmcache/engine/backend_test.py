"""The storage plugin of LMCache inside an engine, against a daemon."""

import asyncio
import threading

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import CreateStorageBackends

from daemon_case import PATIENCE_S
from kvstreamd.lmcache.backend import name_of
from lmcache_case import PARAMS, LmcacheCase

SHAPE = (4, 2, 256, 2, 16)


class BackendTest(LmcacheCase):
    """Made by LMCache, from its config."""

    def setUp(self):
        super().setUp()
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        thread.start()
        self.addCleanup(self.loop.close)
        self.addCleanup(thread.join)
        self.addCleanup(self.loop.call_soon_threadsafe, self.loop.stop)
        self.backend = self.make()

    def make(self, **changes):
        extra = {"storage_plugin.kvstreamd.module_path": "kvstreamd.lmcache.backend",
                 "storage_plugin.kvstreamd.class_name": "KVStreamBackend",
                 **{f"kvstreamd.{name}": value for name, value in
                    {**PARAMS, "socket": self.node.socket, **changes}.items()}}
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=256, local_cpu=False, max_local_cpu_size=0.1,
            storage_plugins=["kvstreamd"], extra_config=extra)
        metadata = LMCacheMetadata(
            model_name="org/model", world_size=1, local_world_size=1, worker_id=0,
            local_worker_id=0, kv_dtype=torch.bfloat16, kv_shape=SHAPE, chunk_size=256)
        backends = CreateStorageBackends(config, metadata, self.loop, dst_device="cpu")
        backend = backends["kvstreamd"]
        self.addCleanup(backend.close)
        return backend

    def key(self, number, **changes):
        return CacheEngineKey(**{"model_name": "org/model", "world_size": 1, "worker_id": 0,
                                 "chunk_hash": number, "dtype": torch.bfloat16, **changes})

    def memory(self, tokens=256):
        memory = self.backend.local_cpu_backend.allocate(
            torch.Size([2, 4, tokens, 32]), torch.bfloat16, MemoryFormat.KV_2LTD)
        memory.tensor.fill_(tokens)
        return memory

    def store(self, keys, memories, backend=None):
        done = []
        futures = (backend or self.backend).batched_submit_put_task(
            keys, memories, on_complete_callback=done.append)
        for future in futures or []:
            future.result(PATIENCE_S)
        return done

    def await_on_loop(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def test_what_is_put_is_there_and_is_got(self):
        keys = [self.key(number) for number in range(1, 6)]
        memories = [self.memory() for _ in keys]
        for number, memory in enumerate(memories):
            memory.tensor.fill_(number)
        self.assertEqual(self.backend.batched_contains(keys), 0)
        self.assertEqual(self.store(keys, memories), keys)
        self.assertFalse(self.backend.exists_in_put_tasks(keys[0]))
        # Its reference, and the test's own, that is all.
        self.assertEqual([memory.get_ref_count() for memory in memories], [1] * 5)
        missing = self.key(99)
        self.assertEqual(self.backend.batched_contains([*keys, missing]), 5)
        got = self.backend.batched_get_blocking([*keys[:2], missing, *keys[2:]])
        self.assertIsNone(got.pop(2))
        for number, memory in enumerate(got):
            self.assertTrue(bool(torch.all(memory.tensor == number)))

    def test_the_awaited_calls_speak_of_leading_chunks(self):
        keys = [self.key(number) for number in range(1, 5)]
        self.store(keys[:2] + keys[3:], [self.memory() for _ in range(3)])
        self.assertEqual(self.await_on_loop(self.backend.batched_async_contains("l", keys)), 2)
        got = self.await_on_loop(self.backend.batched_get_non_blocking("l", keys))
        self.assertEqual(len(got), 2)

    def test_a_chunk_that_is_not_whole_is_not_kept(self):
        self.assertEqual(self.store([self.key(1)], [self.memory(tokens=128)]), [])
        self.assertFalse(self.backend.contains(self.key(1)))

    def test_keys_that_differ_share_nothing(self):
        base = self.key(1)
        others = [self.key(2), self.key(1, model_name="m"), self.key(1, world_size=2),
                  self.key(1, worker_id=1), self.key(1, dtype=torch.float16),
                  self.key(1, request_configs={"lmcache.tag.user": "a"}),
                  self.key(1, request_configs={"lmcache.tag.user": "b"})]
        self.assertEqual(len({name_of(key) for key in [base, *others]}), len(others) + 1)
        self.store([base], [self.memory()])
        self.assertEqual([self.backend.contains(key) for key in [base, *others]],
                         [True] + [False] * len(others))

    def test_what_is_removed_is_gone(self):
        backend = self.make(lease_ms=0)
        self.store([self.key(1)], [self.memory()], backend=backend)
        self.written_everywhere()
        self.assertTrue(backend.remove(self.key(1)))
        self.assertFalse(backend.contains(self.key(1)))

    def test_without_a_daemon_nothing_is_there_and_all_is_released(self):
        self.node.kill()
        memory = self.memory()
        self.assertEqual(self.store([self.key(1)], [memory]), [])
        self.assertEqual(memory.get_ref_count(), 1)
        self.assertFalse(self.backend.contains(self.key(1)))
        self.assertIsNone(self.backend.get_blocking(self.key(1)))
