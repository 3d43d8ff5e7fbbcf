"""What the tests of the Python client share: a daemon for each test, a client, bytes to know again.

The programs come by the environment: KVSTREAMD_PROGRAM and KVSTREAMCTL_PROGRAM.
"""

import hashlib
import os
import pathlib
import sys
import tempfile
import unittest

import numpy as np

import kvstreamd

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import real_node  # noqa: E402

CHUNK_BYTES = 64 << 10
PATIENCE_S = real_node.PATIENCE_S


def description(**changes):
    """A model's namespace; `changes` make another one of it."""
    fields = {"model": "test/model", "weights_fingerprint": b"revision 1", "kv_dtype": "bfloat16",
              "layout": "block-major/L,2,T,H,D", "chunk_tokens": 16,
              "groups": [kvstreamd.Group(chunk_bytes=CHUNK_BYTES)]}
    return kvstreamd.NamespaceDescription(**{**fields, **changes})


def prefix_hashes(count, seed="prefix"):
    """Chained as an engine's, so that each says all before it."""
    hashes = []
    for number in range(count):
        before = hashes[-1] if hashes else seed.encode()
        hashes.append(hashlib.sha256(before + number.to_bytes(4, "little")).digest())
    return hashes


def chunk_bytes_of(prefix_hash, more=b""):
    """Bytes of one chunk that no other has."""
    seed = int.from_bytes(hashlib.sha256(prefix_hash + more).digest()[:8], "little")
    return np.random.default_rng(seed).integers(0, 256, CHUNK_BYTES, dtype=np.uint8)


def open_sockets():
    """How many sockets this process has open, the handoff's and gRPC's."""
    links = []
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(entry))
        except FileNotFoundError:
            pass  # The listing's own.
    return len([link for link in links if link.startswith("socket:")])


class DaemonCase(unittest.TestCase):
    """A test with a daemon of its own, and a client of it."""

    # Of the node: real_node.Node.
    node_options = {}

    def setUp(self):
        # Cleaned up last, so looked at last.
        before = open_sockets()
        self.addCleanup(self.check_sockets, before)
        folder = tempfile.TemporaryDirectory(prefix="kvstream-python-")
        self.addCleanup(folder.cleanup)
        self.node = real_node.Node(os.environ["KVSTREAMD_PROGRAM"],
                                   os.environ["KVSTREAMCTL_PROGRAM"], folder.name,
                                   **self.node_options)
        self.addCleanup(self.node.end)
        self.node.start()
        self.client = self.connect()

    def check_sockets(self, before):
        """The clients' sockets are closed; gRPC's threads may be a moment behind."""
        real_node.wait(lambda: open_sockets() <= before, f"no more than {before} sockets are open")

    def connect(self, **options):
        """Another client, closed at the test's end while the daemon still runs."""
        client = kvstreamd.Client(self.node.socket, client_name=self.id()[-128:],
                                  **{"connect_timeout_s": PATIENCE_S,
                                     "call_timeout_s": PATIENCE_S,
                                     "deadline_ms": 1000 * PATIENCE_S, **options})
        self.addCleanup(client.close)
        return client

    def chunks(self, buffer, hashes, first=0, **fields):
        """Placements one after the other, from chunk `first` of the buffer on."""
        return [kvstreamd.ChunkAt(prefix_hash, buffer.at((first + i) * CHUNK_BYTES), **fields)
                for i, prefix_hash in enumerate(hashes)]

    def bytes_at(self, buffer, number):
        """Chunk `number` of a buffer."""
        return buffer.array[number * CHUNK_BYTES:(number + 1) * CHUNK_BYTES]

    def keep(self, namespace, hashes, *, client=None, more=b"", **options):
        """Stores the chunks of these hashes, durably."""
        client = client or self.client
        buffer = client.create_host_buffer(len(hashes) * CHUNK_BYTES)
        for number, prefix_hash in enumerate(hashes):
            self.bytes_at(buffer, number)[:] = chunk_bytes_of(prefix_hash, more)
        stored = client.store(namespace, self.chunks(buffer, hashes), durable=True,
                              admission_ms=1000 * PATIENCE_S, **options).result()
        client.drop_host_buffer(buffer)
        return stored

    def load(self, namespace, hashes, *, client=None, more=b"", **options):
        """Reads the chunks into a new buffer; the outcome, whose valid chunks have right bytes."""
        client = client or self.client
        buffer = client.create_host_buffer(len(hashes) * CHUNK_BYTES)
        operation = client.read_step([kvstreamd.ReadRequest(
            namespace=namespace, request_id=1, chunks=self.chunks(buffer, hashes), **options)])
        self.assertTrue(operation.wait())
        outcome = operation.requests[0].result(0)
        self.check_bytes(buffer, hashes, outcome, more=more)
        client.drop_host_buffer(buffer)
        return outcome

    def check_bytes(self, buffer, hashes, outcome, *, first=0, more=b""):
        """Every chunk that is said to be valid has the bytes that were stored."""
        for number in [*range(outcome.leading_valid), *outcome.other_valid]:
            np.testing.assert_array_equal(self.bytes_at(buffer, first + number),
                                          chunk_bytes_of(hashes[number], more))

    def written_everywhere(self):
        """Waits until both tiers have all that was stored."""
        real_node.wait(lambda: self.client.status().pool.staged_bytes == 0,
                       "everything is on both tiers")
