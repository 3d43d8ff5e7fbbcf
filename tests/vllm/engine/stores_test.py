"""When a worker's stores let go of blocks that the daemon reads in place. No engine and no daemon:
the test says what the daemon has released."""

import concurrent.futures
import threading
import types
import unittest
from unittest import mock

import torch

from kvstreamd import errors
from kvstreamd.vllm import stores
from kvstreamd.vllm.counters import Counters
from kvstreamd.vllm.link import Ready
from kvstreamd.vllm.metadata import ChunkBlocks, StepPlan, StoreJob
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.order import StreamOrder
from kvstreamd.vllm.worker import Worker


class InPlace:
    """A mover whose every chunk the daemon reaches in the engine's memory."""

    chunk_bytes = 64

    def direct(self, blocks):
        return tuple(blocks)


class Daemon:
    """A client whose stores end when the test says so."""

    def __init__(self):
        self.stores = []

    def store(self, _namespace, _chunks, **_options):
        operation = types.SimpleNamespace(released=concurrent.futures.Future())
        self.stores.append(operation)
        return operation


class InPlaceTest(unittest.TestCase):
    """Wrong bytes under a key, were a block given away too early."""

    def setUp(self):
        self.daemon = Daemon()
        self.ready = Ready(self.daemon, None, None)
        self.counters = Counters()
        self.stores = stores.Stores(InPlace(), 0, Options.parse({}), self.counters,
                                    StreamOrder(torch.device("cpu")))

    def begin(self, job_id=1, request="r"):
        self.stores.begin([StoreJob(job_id, request, b"", b"", [ChunkBlocks(b"key", [1, 2])])],
                          self.ready)

    def release(self, number=0, code=errors.Code.OK):
        self.daemon.stores[number].released.set_result(
            [types.SimpleNamespace(code=code, existed=False)])

    def test_blocks_are_in_use_until_the_daemon_has_released_them(self):
        self.begin()
        self.assertTrue(self.stores.running_for({"r"}))
        self.assertFalse(self.stores.running_for({"other"}))
        self.assertEqual(self.stores.collect(), [])
        self.release()
        self.assertEqual(self.stores.collect(), [1])
        self.assertFalse(self.stores.running_for({"r"}))
        self.assertEqual(self.stores.collect(), [])

    def test_a_finished_request_is_not_sent_before_its_blocks_are_released(self):
        worker = Worker(Options.parse({"socket": "/nowhere"}), "test", 0, False)
        self.addCleanup(worker.close)
        self.begin()
        with mock.patch.object(worker, "_stores", self.stores):
            worker.start_loads(StepPlan(held={"r"}))
            self.assertEqual(worker.transfers().sent, set())
            self.release()
            self.assertEqual(worker.transfers().sent, {"r"})
            self.assertEqual(worker.transfers().sent, set())
        self.assertEqual(worker.take_report()[0], [1])

    def test_every_store_of_a_request_counts(self):
        self.begin(1)
        self.begin(2)
        self.release(1)
        self.assertEqual(self.stores.collect(), [2])
        self.assertTrue(self.stores.running_for({"r"}))

    def test_preemption_waits_for_the_release_of_its_requests_alone(self):
        self.begin(1, "preempted")
        self.begin(2, "other")
        waiting, over = threading.Event(), threading.Event()
        released = self.daemon.stores[0].released

        def wait():
            self.stores.wait_for({"preempted"})
            over.set()
        real_wait = concurrent.futures.wait

        def watched(futures, timeout):
            self.assertEqual(list(futures), [released])
            waiting.set()
            return real_wait(futures, timeout)
        with mock.patch.object(stores.concurrent.futures, "wait", watched):
            thread = threading.Thread(target=wait)
            thread.start()
            self.assertTrue(waiting.wait(10))
            self.assertFalse(over.is_set())
            self.release(0)
            thread.join(10)
        self.assertTrue(over.is_set())
        self.assertGreater(self.counters.take()["block_wait_seconds"], 0)

    def test_a_daemon_that_does_not_release_ends_the_engine_instead_of_its_bytes(self):
        self.begin()
        with (mock.patch.object(stores, "_GRACE_S", 0.0),
              mock.patch.object(self.stores, "_options",
                                         Options.parse({"store_deadline_ms": 1}))):
            with self.assertRaisesRegex(RuntimeError, "does not release blocks of r"):
                self.stores.wait_for({"r"})

    def test_the_end_of_a_session_frees_blocks(self):
        self.begin()
        self.release(code=errors.Code.UNAVAILABLE)
        self.stores.wait_for({"r"})
        self.assertEqual(self.stores.collect(), [1])
        self.assertEqual(self.counters.take()["dropped_chunks"], 1)

    def test_a_store_that_cannot_begin_holds_nothing(self):
        with mock.patch.object(self.daemon, "store", side_effect=ValueError("closed")):
            self.begin()
        self.stores.wait_for({"r"})
        self.assertEqual(self.stores.collect(), [1])


if __name__ == "__main__":
    unittest.main()
