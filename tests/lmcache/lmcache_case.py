"""What the tests of LMCache's connector share: a daemon, a connector, LMCache's part played."""

import hashlib
import itertools
import select

import numpy as np

from daemon_case import CHUNK_BYTES, PATIENCE_S, DaemonCase, real_node
from kvstreamd.lmcache import KVStreamConnector

MODEL = "test/model"
RANK = 0x01000100
PARAMS = {"weights_fingerprint": "4f2a", "host_buffer_mib": 8, "durable": True,
          **dict.fromkeys(("load_deadline_ms", "store_deadline_ms", "store_admission_ms",
                           "lookup_timeout_ms"), 1000 * PATIENCE_S)}


def key(number, model=MODEL, rank=RANK, group=0, salt="", seed="object"):
    """A key string as LMCache's server makes them."""
    digest = hashlib.sha256(f"{seed} {number}".encode()).hexdigest()
    return f"{model}@{rank:08x}@{group:x}@{digest}" + (f"@{salt}" if salt else "")


def keys(count, **fields):
    """Of `count` objects."""
    return [key(number, **fields) for number in range(count)]


def payload(name, nbytes=CHUNK_BYTES):
    """Bytes that no other key has."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


class LmcacheCase(DaemonCase):
    """Submits, and waits for completions by the event descriptor, as LMCache does."""

    def setUp(self):
        super().setUp()
        self.connector = self.connect_lmcache()

    def connect_lmcache(self, **params):
        """A connector, closed at the test's end."""
        connector = KVStreamConnector(**{"socket": self.node.socket, **PARAMS, **params})
        self.addCleanup(connector.close)
        return connector

    def wait_for(self, number, connector=None):
        """(good, error, results) of a submission, the only one that is not complete."""
        connector = connector or self.connector
        poller = select.poll()
        poller.register(connector.event_fd(), select.POLLIN)
        for _ in itertools.count():
            self.assertTrue(poller.poll(1000 * PATIENCE_S), "nothing completes")
            for completed, *rest in connector.drain_completions():
                self.assertEqual(completed, number)
                return rest

    def store(self, names, connector=None, nbytes=CHUNK_BYTES):
        """Stores each key's payload."""
        connector = connector or self.connector
        buffers = [memoryview(payload(name, nbytes)) for name in names]
        return self.wait_for(connector.submit_batch_set(names, buffers), connector)

    def stored(self, names, **options):
        """As `store`, which succeeds."""
        good, error, results = self.store(names, **options)
        self.assertTrue(good, error)
        self.assertEqual(results, [True] * len(names))

    def found(self, names, connector=None):
        """What a lookup says of each key."""
        connector = connector or self.connector
        good, error, results = self.wait_for(connector.submit_batch_exists(names), connector)
        self.assertTrue(good, error)
        return results

    def load(self, names, connector=None, nbytes=CHUNK_BYTES):
        """(good, error, results) of a load, whose hits have right bytes, and what is no hit was
        left alone."""
        connector = connector or self.connector
        buffers = [np.full(nbytes, 0xA5, dtype=np.uint8) for _ in names]
        number = connector.submit_batch_get(names, [memoryview(buffer) for buffer in buffers])
        good, error, results = self.wait_for(number, connector)
        for name, buffer, hit in zip(names, buffers, results):
            np.testing.assert_array_equal(
                buffer, payload(name, nbytes) if hit else np.full(nbytes, 0xA5, dtype=np.uint8))
        return good, error, results

    def loaded(self, names, **options):
        """What a load says of each key."""
        return self.load(names, **options)[2]

    def connected_again(self, connector=None):
        """Waits until the connector is with the daemon that runs now."""
        connector = connector or self.connector
        real_node.wait(lambda: self.wait_for(connector.submit_batch_exists(keys(1)), connector)[0],
                       "the connector is back")
