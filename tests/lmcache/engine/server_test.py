"""LMCache's own second level with the connector in it, against a daemon."""

import json
import os
import pathlib
import re
import subprocess
import sys

import prometheus_client
import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.api import PrefetchTaskSpec
from lmcache.v1.distributed.config import parse_args
from lmcache.v1.distributed.l2_adapters import native_connector_l2_adapter
from lmcache.v1.distributed.storage_manager import StorageManager

from daemon_case import CHUNK_BYTES, PATIENCE_S, real_node
from kvstreamd.lmcache.names import parse
from lmcache_case import LmcacheCase, keys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
LAYOUT = MemoryLayoutDesc([torch.Size([CHUNK_BYTES])], [torch.uint8])


def documented_adapter():
    """The adapter's JSON of the README, to be pasted."""
    text = (ROOT / "client/python/README.md").read_text(encoding="utf-8")
    return json.loads(re.search(r"--l2-adapter '(\{.*?\})'\n", text, re.DOTALL)[1])


class ServerCase(LmcacheCase):
    """What several tests share."""

    def adapter(self, **params):
        """The README's adapter, with this test's daemon."""
        adapter = documented_adapter()
        adapter["adapter_params"].update({"socket": self.node.socket, "host_buffer_mib": 64,
                                          **params})
        return json.dumps(adapter)


class StorageTest(ServerCase):
    """LMCache's storage, as its server runs it: what leaves its memory comes back."""

    def setUp(self):
        super().setUp()
        self.closed = []

    def make_storage(self, **params):
        storage = StorageManager(parse_args([
            "--l1-size-gb", "0.25", "--eviction-policy", "noop",
            "--l2-adapter", self.adapter(**params)]))
        self.addCleanup(self.close_once, storage)
        return storage

    def close_once(self, storage):
        """LMCache's own may not be called twice, and two of one process share a name."""
        if storage not in self.closed:
            self.closed.append(storage)
            storage.close()

    def keys(self, count, seed=0, salt=""):
        return [ObjectKey(chunk_hash=(seed * 1000 + number).to_bytes(32, "big"),
                          model_name="org/model", kv_rank=0x01000100, cache_salt=salt)
                for number in range(count)]

    def write(self, storage, keys):
        """Through LMCache's memory, as an engine's KV comes."""
        for key, memory in storage.reserve_write(keys, LAYOUT).items():
            memory.tensor.fill_(key.chunk_hash[-1] + 1)
        storage.finish_write(keys)

    def write_through(self, storage, keys):
        """Until the daemon has all, and LMCache's memory has nothing."""
        before = self.client.status().operations.chunks_stored
        self.write(storage, keys)
        real_node.wait(lambda: self.client.status().operations.chunks_stored
                       >= before + len(keys), "all is stored")
        real_node.wait(lambda: storage.clear() or storage.get_l1_usage()[0] == 0,
                       "LMCache's memory is empty")

    def prefetch(self, storage, keys):
        """How many LMCache finds below its memory; their bytes are right."""
        handle = storage.submit_prefetch_task(PrefetchTaskSpec(key_groups=[
            GroupedObjectKeys(keys=keys, object_group_id=0, layout_desc=LAYOUT)]))
        self.assertTrue(storage.wait_prefetch_status(handle, PATIENCE_S))
        result = storage.query_prefetch_status(handle)
        hits = result.l2_hit_cells[0].popcount()
        with storage.read_prefetched_results(keys[:hits], result.l1_owners) as objects:
            for key, memory in zip(keys, objects):
                self.assertTrue(bool(torch.all(memory.tensor == key.chunk_hash[-1] + 1)))
        storage.finish_read_prefetched(keys[:hits], 1, result.l1_owners)
        storage.clear(force=True)
        return hits

    def test_what_left_its_memory_is_loaded_again(self):
        storage, keys = self.make_storage(), self.keys(24)
        self.write_through(storage, keys)
        self.assertEqual(self.prefetch(storage, keys), 24)
        self.assertEqual(self.prefetch(storage, self.keys(24, seed=1)), 0)
        self.assertEqual(self.prefetch(storage, self.keys(24, salt="other")), 0)

    def test_another_lmcache_finds_it(self):
        keys = self.keys(8)
        storage = self.make_storage()
        self.write_through(storage, keys)
        self.close_once(storage)
        other = self.make_storage()
        real_node.wait(lambda: self.prefetch(other, keys) == 8, "it is found")

    def test_a_daemon_that_dies_is_a_miss_and_is_used_again_when_it_is_back(self):
        storage, keys = self.make_storage(), self.keys(16)
        self.write_through(storage, keys)
        self.written_everywhere()
        self.node.kill()
        self.assertEqual(self.prefetch(storage, keys), 0)
        self.write(storage, self.keys(4, seed=2))
        self.node.start()
        real_node.wait(lambda: self.prefetch(storage, keys) == 16, "the connector is back")
        self.client.reconnect()
        self.write_through(storage, self.keys(4, seed=3))
        self.assertEqual(self.prefetch(storage, self.keys(4, seed=3)), 4)


class CommandTest(ServerCase):
    """LMCache's command line."""

    def test_its_own_bench_loads_what_it_has_stored_and_verifies_it(self):
        ran = subprocess.run(
            [*real_node.DIE_WITH_PARENT, sys.executable, "-m", "lmcache.cli.main", "bench", "l2",
             "--l2-adapter", self.adapter(durable=True), "--num-keys", "8", "--in-flight", "3",
             "--rounds", "2", "--data-size-kb", "256", "--lookup-max-hit-rate", "1.0",
             "--no-skip-verify"], capture_output=True, text=True, check=False,
            timeout=2 * PATIENCE_S, env={**os.environ, "LMCACHE_TRACK_USAGE": "false"})
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("Verify", ran.stdout)
        self.assertEqual([int(each) for each in re.findall(r"Total success:\s+(\d+)", ran.stdout)],
                         [48, 48, 48], ran.stdout)

    def test_prometheus_serves_what_is_counted(self):
        self.stored(keys(3))
        text = prometheus_client.generate_latest(prometheus_client.REGISTRY).decode()
        self.assertIn("lmcache_kvstreamd_stored_objects_total 3.0\n", text)

    def test_every_key_of_lmcaches_has_a_name_of_its_own(self):
        made = [ObjectKey(chunk_hash=digest, model_name=model, kv_rank=rank, object_group_id=group,
                          cache_salt=salt)
                for digest in (b"\0" * 4, b"\1" * 16, b"\2" * 32, b"\3" * 64, b"\4" * 80)
                for model in ("org/model", "a b", "m\n", "%s")
                for rank in (0, 0x01000100, 0x40020402) for group in (0, 1, 255)
                for salt in ("", "tenant", "a b", "0")]
        names = [parse(native_connector_l2_adapter._object_key_to_string(key)) for key in made]
        self.assertNotIn(None, names)
        self.assertEqual(len(set(names)), len(made))
