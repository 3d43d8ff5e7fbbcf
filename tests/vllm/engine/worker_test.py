"""The connector's worker against a real daemon, without an engine: the test is the scheduler."""

import torch

from daemon_case import DaemonCase, prefix_hashes, real_node
from kvstreamd.identity import Group, NamespaceDescription
from kvstreamd.vllm.layout import KVLayout
from kvstreamd.vllm.metadata import ChunkBlocks, LoadJob, StepPlan, StoreJob
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.worker import Worker

BLOCKS, TOKENS = 64, 16
CHUNK_BLOCKS = 4


class WorkerTest(DaemonCase):
    """Blocks have 32 KiB, so that a MiB of buffer has four chunks each way."""

    DEVICE = "cpu"

    def setUp(self):
        super().setUp()
        self.jobs = 0

    def make_worker(self, rank=0, ranks=1, replicated=False, **options):
        """A worker and its KV: one layer, every byte of block b the value b."""
        kv = torch.arange(BLOCKS, dtype=torch.uint8).repeat_interleave(32 << 10).view(
            BLOCKS, 2, TOKENS, -1).to(self.DEVICE, copy=True)
        worker = Worker(Options.parse({"socket": self.node.socket, "host_buffer_mib": 1,
                                       "store_admission_ms": 10_000, **options}),
                        f"test/{rank}", rank, replicated)
        self.addCleanup(worker.close)
        worker.register(KVLayout({"layer": kv}, BLOCKS))
        worker.start_stores(StepPlan(namespace=NamespaceDescription(
            model="m", weights_fingerprint=b"f", kv_dtype="uint8", layout="l",
            chunk_tokens=CHUNK_BLOCKS * TOKENS, page_tokens=TOKENS,
            groups=[Group(chunk_bytes=CHUNK_BLOCKS * (32 << 10),
                          shards=1 if replicated else ranks, replicated=replicated)])))
        return worker, kv

    def store(self, worker, keys, first_block=0, request="r"):
        self.jobs += 1
        worker.start_stores(StepPlan(stores=[StoreJob(
            self.jobs, request, b"", b"", self.places(keys, first_block))]))

    def places(self, keys, first_block=0):
        return [ChunkBlocks(key, list(range(first_block + i * CHUNK_BLOCKS,
                                            first_block + (i + 1) * CHUNK_BLOCKS)))
                for i, key in enumerate(keys)]

    def stored(self, *workers, chunks):
        """Waits until the daemon has taken so many."""
        def settle():
            for worker in workers:
                worker.transfers()
            operations = self.client.status().operations
            return operations.chunks_stored >= chunks and not operations.running
        real_node.wait(settle, f"{chunks} chunks are stored")

    def load(self, worker, keys, first_block=0, skip=0):
        """Loads, and waits for the end: what has ended."""
        worker.start_loads(StepPlan(loads=[LoadJob("r", b"", 0, self.places(keys, first_block),
                                                   skip)]))
        ends = []
        real_node.wait(lambda: ends.append(worker.transfers()) or ends[-1].received,
                       "the load has ended")
        return ends[-1]

    def values(self, kv, count):
        """The value of each block; None where its bytes differ."""
        flat = kv.view(BLOCKS, -1)
        return [int(row[0]) if (row == row[0]).all() else None for row in flat[:count]]

    def test_loads_bring_back_what_was_stored(self):
        worker, kv = self.make_worker()
        keys = prefix_hashes(3)
        self.store(worker, keys, first_block=8)
        self.stored(worker, chunks=3)
        ended = self.load(worker, keys, first_block=32)
        self.assertEqual((ended.failed, ended.bad_blocks), (set(), set()))
        self.assertEqual(self.values(kv, 48)[32:44], list(range(8, 20)))

    def test_blocks_of_others_are_not_written(self):
        worker, kv = self.make_worker()
        keys = prefix_hashes(1)
        self.store(worker, keys, first_block=8)
        self.stored(worker, chunks=1)
        ended = self.load(worker, keys, first_block=32, skip=3)
        self.assertEqual(ended.bad_blocks, set())
        self.assertEqual(self.values(kv, 36)[32:], [32, 33, 34, 11])

    def test_a_load_larger_than_the_buffer_comes_in_parts(self):
        worker, kv = self.make_worker()
        keys = prefix_hashes(8)
        for first in range(0, 8, 2):
            self.store(worker, keys[first:first + 2], first_block=4 * first)
            self.stored(worker, chunks=first + 2)
        kv.fill_(99)
        ended = self.load(worker, keys)
        self.assertEqual(ended.bad_blocks, set())
        self.assertEqual(self.values(kv, 32), list(range(32)))

    def test_from_the_first_chunk_that_is_missing_blocks_are_reported(self):
        worker, kv = self.make_worker()
        keys = prefix_hashes(4)
        self.store(worker, keys[:1], first_block=8)
        self.store(worker, keys[2:3], first_block=12)
        self.stored(worker, chunks=2)
        ended = self.load(worker, keys, first_block=32)
        self.assertEqual(ended.received, {"r"})
        self.assertEqual(ended.failed, set())
        self.assertEqual(ended.bad_blocks, set(range(36, 48)))
        self.assertEqual(self.values(kv, 36)[32:], [8, 9, 10, 11])
        self.assertEqual(worker.take_report()[1], {"r": 1})

    def test_a_load_of_nothing_has_failed_as_a_whole(self):
        worker, _ = self.make_worker()
        ended = self.load(worker, prefix_hashes(2), skip=1)
        self.assertEqual(ended.failed, {"r"})
        self.assertEqual(ended.bad_blocks, set(range(1, 8)))

    def test_without_a_daemon_loads_fail_and_stores_are_dropped(self):
        worker, _ = self.make_worker()
        keys = prefix_hashes(2)
        self.node.kill()
        self.assertEqual(self.load(worker, keys).failed, {"r"})
        self.store(worker, keys)
        real_node.wait(lambda: worker.transfers() and worker.take_report()[0] == [self.jobs],
                       "the store's blocks are free")
        self.node.start()

        def kept():
            self.store(worker, keys)
            worker.transfers()
            return self.client_of_now().status().operations.chunks_stored >= 2
        real_node.wait(kept, "the worker is connected again")

    def client_of_now(self):
        """The client, of the daemon that runs now."""
        if self.client.lost:
            self.client.reconnect()
        return self.client

    def test_blocks_of_a_finished_request_are_free_once_they_are_copied(self):
        worker, _ = self.make_worker()
        self.store(worker, prefix_hashes(2))
        # A step that computes nothing only begins loads, in some releases.
        worker.start_loads(StepPlan(held={"r"}))
        self.assertEqual(worker.transfers().sent, {"r"})
        self.assertEqual(worker.take_report()[0], [self.jobs])

    def test_what_has_no_room_is_dropped_from_there_on(self):
        worker, _ = self.make_worker()
        self.store(worker, prefix_hashes(6))
        self.stored(worker, chunks=4)
        counts = worker.take_stats()
        self.assertEqual((counts["stored_chunks"], counts["dropped_chunks"]), (4, 2))

    def test_two_ranks_have_their_own_halves(self):
        ranks = [self.make_worker(rank, ranks=2) for rank in range(2)]
        keys = prefix_hashes(1)
        for rank, (worker, _) in enumerate(ranks):
            self.store(worker, keys, first_block=8 + 4 * rank)
        self.stored(*(worker for worker, _ in ranks), chunks=2)
        for rank, (worker, kv) in enumerate(ranks):
            self.assertEqual(self.load(worker, keys, first_block=32).bad_blocks, set())
            self.assertEqual(self.values(kv, 36)[32:], list(range(8 + 4 * rank, 12 + 4 * rank)))

    def test_what_all_ranks_hold_is_stored_by_one_and_loaded_by_all(self):
        ranks = [self.make_worker(rank, ranks=2, replicated=True) for rank in range(2)]
        keys = prefix_hashes(1)
        for worker, _ in ranks:
            self.store(worker, keys, first_block=8)
        self.stored(*(worker for worker, _ in ranks), chunks=1)
        for worker, kv in ranks:
            self.assertEqual(self.load(worker, keys, first_block=32).bad_blocks, set())
            self.assertEqual(self.values(kv, 36)[32:], [8, 9, 10, 11])
        self.assertEqual(self.client.status().operations.chunks_existed, 0)
