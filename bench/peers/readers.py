#!/usr/bin/env python3
"""One contender of compare.py, in the Python that has its package.

  readers.py KIND OBJECTS OBJECT_BYTES JSON

Objects are stored before the first line of stdin; each line then has it read all of them, cold, and
print the bytes that came and the seconds that it took. An object's bytes tell which it is, and are
looked at after the clock.
"""

import asyncio
import json
import sys
import threading
import time
import types

MODEL = "bench/model"


class LMCacheServer:
    """LMCache's storage as its server runs it: `adapters` below its own memory."""

    def __init__(self, count, nbytes, adapters, store=True):
        import torch
        from lmcache.v1.distributed import api
        from lmcache.v1.distributed.config import parse_args
        from lmcache.v1.distributed.storage_manager import StorageManager
        self.api, self.torch = api, torch
        self.layout = api.MemoryLayoutDesc([torch.Size([nbytes])], [torch.uint8])
        self.nbytes = nbytes
        memory_gb = (count * nbytes >> 20) / 1024 + 0.25
        arguments = ["--l1-size-gb", str(memory_gb), "--eviction-policy", "noop"]
        for adapter in adapters:
            arguments += ["--l2-adapter", json.dumps(adapter)]
        self.storage = StorageManager(parse_args(arguments))
        self.keys = [api.ObjectKey(chunk_hash=number.to_bytes(32, "big"), model_name=MODEL,
                                   kv_rank=0x01000100) for number in range(count)]
        if store:
            self.store()

    def store(self):
        for at in range(0, len(self.keys), 8):
            keys = self.keys[at:at + 8]
            for key, memory in self.storage.reserve_write(keys, self.layout).items():
                memory.tensor.fill_(mark(int.from_bytes(key.chunk_hash, "big")))
            self.storage.finish_write(keys)
            # Not counted for a moment between waiting and running.
            quiet = 0
            while quiet < 3:
                time.sleep(0.02)
                status = self.storage.report_status()["store_controller"]
                busy = status["pending_keys_count"] or status["in_flight_task_count"]
                quiet = 0 if busy else quiet + 1
            self.storage.clear(force=True)

    def read(self):
        spec = self.api.PrefetchTaskSpec(key_groups=[self.api.GroupedObjectKeys(
            keys=self.keys, object_group_id=0, layout_desc=self.layout)])
        began = time.perf_counter()
        handle = self.storage.submit_prefetch_task(spec)
        assert self.storage.wait_prefetch_status(handle, 600)
        seconds = time.perf_counter() - began
        result = self.storage.query_prefetch_status(handle)
        keys = self.keys[:result.l2_hit_cells[0].popcount()]
        with self.storage.read_prefetched_results(keys, result.l1_owners) as objects:
            for number, memory in enumerate(objects):
                assert bool(self.torch.all(memory.tensor == mark(number))), "wrong bytes"
        self.storage.finish_read_prefetched(keys, 1, result.l1_owners)
        self.storage.clear(force=True)
        return len(keys) * self.nbytes, seconds

    def close(self):
        self.storage.close()


class LMCacheDisk:
    """LMCache's disk backend inside an engine. Its index is in memory, so that it must store."""

    def __init__(self, count, nbytes, path):
        import torch
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.metadata import LMCacheMetadata
        from lmcache.v1.storage_backend import CreateStorageBackends
        self.torch, self.nbytes = torch, nbytes
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        tokens, heads, size, layers = 256, 8, 128, nbytes // (2 * 256 * 8 * 128 * 2)
        gib = count * nbytes / 2 ** 30
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=tokens, local_cpu=False, max_local_cpu_size=gib + 0.5,
            local_disk=path, max_local_disk_size=2 * gib, extra_config={"use_odirect": True})
        metadata = LMCacheMetadata(
            model_name=MODEL, world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
            kv_dtype=torch.bfloat16, kv_shape=(layers, 2, tokens, heads, size), chunk_size=tokens)
        self.backends = CreateStorageBackends(config, metadata, self.loop, dst_device="cpu")
        self.disk = self.backends["LocalDiskBackend"]
        self.keys = [CacheEngineKey(MODEL, 1, 0, number + 1, torch.bfloat16)
                     for number in range(count)]
        shape = torch.Size([2, layers, tokens, heads * size])
        for number, key in enumerate(self.keys):
            memory = self.disk.local_cpu_backend.allocate(shape, torch.bfloat16,
                                                          MemoryFormat.KV_2LTD)
            memory.tensor.view(torch.uint8).fill_(mark(number))
            self.disk.batched_submit_put_task([key], [memory])
            memory.ref_count_down()
            while self.disk.exists_in_put_tasks(key):
                time.sleep(0.001)

    def read(self):
        began = time.perf_counter()
        objects = self.disk.batched_get_blocking(self.keys)
        seconds = time.perf_counter() - began
        came = 0
        for number, memory in enumerate(objects):
            if memory is not None:
                assert bool(self.torch.all(memory.tensor.view(self.torch.uint8) == mark(number)))
                came += self.nbytes
                memory.ref_count_down()
        return came, seconds

    def close(self):
        for backend in self.backends.values():
            backend.close()


class VllmFiles:
    """The file system tier of vLLM's offloading, as its manager calls it; `jobs` loads at once."""

    def __init__(self, count, nbytes, path, jobs=16, store=True):
        import mmap
        import numpy
        from vllm.v1.kv_offload.base import make_offload_key
        from vllm.v1.kv_offload.tiering.base import TransferJob
        from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
        self.numpy, self.job = numpy, TransferJob
        self.count, self.nbytes, self.jobs = count, nbytes, jobs
        # Pages, as O_DIRECT wants them.
        self.memory = numpy.frombuffer(mmap.mmap(-1, count * nbytes), numpy.uint8).reshape(
            count, nbytes)
        parallel = types.SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0,
                                         is_parallelism_agnostic=False)
        config = types.SimpleNamespace(
            groups=[], parallel=parallel, canonical_layout=False, replicated_layout=False,
            model=types.SimpleNamespace(name=MODEL, dtype="bfloat16"),
            cache=types.SimpleNamespace(tokens_per_hash=16))
        self.tier = FileSystemTierManager(
            types.SimpleNamespace(config=config, blocks_per_chunk=1, kv_events_config=None),
            memoryview(self.memory), "fs", path)
        self.keys = [make_offload_key(number.to_bytes(32, "big"), 0) for number in range(count)]
        if store:
            for number in range(count):
                self.memory[number] = mark(number)
            self.run(self.tier.submit_store, False)

    def run(self, submit, promotion):
        size = -(-self.count // self.jobs)
        for job, at in enumerate(range(0, self.count, size)):
            ids = self.numpy.arange(at, min(at + size, self.count))
            submit(self.job(job, [self.keys[i] for i in ids], ids, promotion, None))
        self.tier.drain_jobs()
        assert all(each.success for each in self.tier.get_finished_jobs())

    def read(self):
        self.memory[:] = 0
        began = time.perf_counter()
        self.run(self.tier.submit_load, True)
        seconds = time.perf_counter() - began
        for number in range(self.count):
            assert (self.memory[number] == mark(number)).all(), "wrong bytes"
        return self.count * self.nbytes, seconds

    def close(self):
        self.tier.shutdown()


class Mooncake:
    """Mooncake's store with its files; `master` is its address. The objects fit its memory until
    they are written; `extra` ones, put after them, drive them out."""

    def __init__(self, count, nbytes, master, path, memory_bytes, extra):
        from mooncake.store import MooncakeDistributedStore
        self.count, self.nbytes = count, nbytes
        self.store = MooncakeDistributedStore()
        assert self.store.setup("127.0.0.1", "P2PHANDSHAKE", memory_bytes, 1 << 30, "tcp", "",
                                master, None, True, path) == 0
        for numbers in (range(count), range(count, count + extra)):
            for number in numbers:
                while self.store.put(f"{number}", bytes([mark(number)]) * nbytes):
                    time.sleep(0.2)
            # The master tells clients every ten seconds what to write.
            time.sleep(30)

    def read(self):
        began = time.perf_counter()
        # What one call brings must fit the client's buffer.
        came = []
        for at in range(0, self.count, 32):
            numbers = range(at, min(at + 32, self.count))
            came += self.store.get_batch([f"{number}" for number in numbers])
        seconds = time.perf_counter() - began
        good = [each for number, each in enumerate(came)
                if each == bytes([mark(number)]) * self.nbytes]
        return sum(map(len, good)), seconds

    def close(self):
        self.store.close()


def mark(number):
    """The byte that an object is made of."""
    return number % 251 + 1


KINDS = {"server": LMCacheServer, "disk": LMCacheDisk, "vllm": VllmFiles, "mooncake": Mooncake}


def main():
    kind, count, nbytes, options = sys.argv[1:]
    # The packages log to stdout, too.
    out = sys.stdout
    sys.stdout = sys.stderr
    reader = KINDS[kind](int(count), int(nbytes), **json.loads(options))
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        came, seconds = reader.read()
        print(json.dumps({"bytes": came, "seconds": seconds}), file=out, flush=True)
    reader.close()


if __name__ == "__main__":
    main()
