"""Whether the daemon is asked to open the engine's KV, and what its answers mean. The test plays
the GPU's memory and the daemon."""

import types
import unittest
from unittest import mock

from kvstreamd import errors
from kvstreamd.vllm.mover import open_region
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.worker import Worker


def layout_of(device="cuda", one=True):
    """As KVLayout, as far as it is looked at."""
    return types.SimpleNamespace(device=types.SimpleNamespace(type=device), tensors=["kv"],
                                 block_dims=[0], one_allocation=lambda: one)


class RegionTest(unittest.TestCase):
    """What may pass is tried again; what will not leaves host memory."""

    def setUp(self):
        self.client = mock.Mock()

    def test_memory_of_a_gpu_in_one_piece_is_opened(self):
        region = open_region(self.client, layout_of())
        self.assertIs(region, self.client.register_region.return_value)
        self.assertIsNone(open_region(self.client, layout_of("cpu")))
        self.assertIsNone(open_region(self.client, layout_of(one=False)))
        self.assertEqual(self.client.register_region.call_count, 1)

    def test_what_may_pass_is_raised_and_what_will_not_leaves_host_memory(self):
        for error in (errors.SessionLost("s"), errors.Unavailable("u"),
                      errors.DeadlineExceeded("d")):
            self.client.register_region.side_effect = error
            with self.assertRaises(type(error)):
                open_region(self.client, layout_of())
        for error in (errors.FailedPrecondition("no GPU"), errors.InvalidArgument("runs"),
                      errors.ResourceExhausted("limit"), ValueError("strides")):
            self.client.register_region.side_effect = error
            self.assertIsNone(open_region(self.client, layout_of()))

    def test_memory_that_sleep_takes_away_is_never_opened(self):
        for in_place in (True, False):
            worker = Worker(Options.parse({"socket": "/nowhere"}), "test", 0, False,
                            in_place=in_place)
            self.addCleanup(worker.close)
            with (mock.patch.object(worker, "_layout", layout_of()),
                  mock.patch.object(worker, "_order", None)):
                # pylint: disable=protected-access
                self.assertEqual(worker._open_region(self.client) is not None, in_place)


if __name__ == "__main__":
    unittest.main()
