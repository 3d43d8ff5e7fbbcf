"""The connector's worker with its KV on a real GPU, which the daemon opens. Skips without one."""

import unittest

import torch

import worker_test
from daemon_case import prefix_hashes, real_node
from kvstreamd.vllm.metadata import StepPlan


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class GpuWorkerTest(worker_test.WorkerTest):
    """What is promised of KV in host memory, and what differs."""

    DEVICE = "cuda"

    def make_worker(self, *args, **options):
        """As for host memory; the daemon has opened the KV when it returns."""
        regions = self.client.status().gpus[0].regions
        worker, kv = super().make_worker(*args, **options)
        real_node.wait(lambda: self.client.status().gpus[0].regions > regions, "the KV is open")
        return worker, kv

    def test_blocks_of_a_finished_request_are_free_once_they_are_copied(self):
        worker, _ = self.make_worker()
        self.store(worker, prefix_hashes(2))
        worker.start_loads(StepPlan(held={"r"}))
        sent = set()
        real_node.wait(lambda: sent.update(worker.transfers().sent) or sent, "the blocks are free")
        self.assertEqual(sent, {"r"})
        self.assertEqual(worker.take_report()[0], [self.jobs])

    def test_what_has_no_room_is_dropped_from_there_on(self):
        worker, kv = self.make_worker()
        keys = prefix_hashes(6)
        self.store(worker, keys)
        self.stored(worker, chunks=6)
        self.assertEqual(worker.take_stats().get("dropped_chunks", 0), 0)
        kv.fill_(99)
        self.assertEqual(self.load(worker, keys).bad_blocks, set())
        self.assertEqual(self.values(kv, 24), list(range(24)))


if __name__ == "__main__":
    unittest.main()
