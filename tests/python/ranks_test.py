"""Two ranks of one engine, each a client with its own shard."""

import unittest

import kvstreamd
from daemon_case import CHUNK_BYTES, PATIENCE_S, DaemonCase, chunk_bytes_of, description
from daemon_case import prefix_hashes

SHARDS = [kvstreamd.Group(chunk_bytes=CHUNK_BYTES, shards=2)]


class RanksTest(DaemonCase):
    """A prefix is present only where all its shards are."""

    def setUp(self):
        super().setUp()
        self.ranks = [self.client, self.connect()]
        self.hashes = prefix_hashes(6)
        self.namespaces = [client.register_namespace(description(groups=SHARDS, tensor_parallel=2))
                           for client in self.ranks]

    def keep_shard(self, rank, hashes):
        """Stores this rank's shard, whose bytes are its own."""
        client = self.ranks[rank]
        buffer = client.create_host_buffer(len(hashes) * CHUNK_BYTES)
        for number, each in enumerate(hashes):
            self.bytes_at(buffer, number)[:] = chunk_bytes_of(each, bytes([rank]))
        client.store(self.namespaces[rank], self.chunks(buffer, hashes, shard=rank),
                     durable=True).result()

    def test_both_ranks_name_the_same_namespace(self):
        self.assertEqual(self.namespaces[0].id, self.namespaces[1].id)

    def test_the_same_registration_has_the_same_handle(self):
        handles = [self.client.register_namespace(description(groups=SHARDS), local_shards=shards)
                   for shards in ({0: [0]}, {0: [1]}, {0: (0,)}, {0: [1]})]
        self.assertIs(handles[0], handles[2])
        self.assertIs(handles[1], handles[3])
        self.assertIsNot(handles[0], handles[1])

    def test_a_chunk_counts_once_all_its_shards_are_there(self):
        self.keep_shard(0, self.hashes)
        self.assertEqual(self.client.lookup(self.namespaces[0], self.hashes).leading_run, 0)
        self.keep_shard(1, self.hashes[:4])
        for client, namespace in zip(self.ranks, self.namespaces):
            self.assertEqual(client.lookup(namespace, self.hashes).leading_run, 4)

    def test_ranks_load_one_step_together_each_its_own_bytes(self):
        for rank in (0, 1):
            self.keep_shard(rank, self.hashes)
        buffers = [client.create_host_buffer(6 * CHUNK_BYTES) for client in self.ranks]
        operations = [client.read_step(
            [kvstreamd.ReadRequest(namespace=namespace, request_id=1,
                                   chunks=self.chunks(buffer, self.hashes, shard=rank))],
            step_id=42, ranks=2, join_timeout_ms=1000 * PATIENCE_S)
            for rank, (client, namespace, buffer) in enumerate(
                zip(self.ranks, self.namespaces, buffers))]
        for rank, operation in enumerate(operations):
            outcome = operation.result()[0]
            self.assertEqual(outcome.leading_valid, 6)
            self.check_bytes(buffers[rank], self.hashes, outcome, more=bytes([rank]))

    def test_a_lease_of_one_rank_covers_the_other_and_is_not_its_to_release(self):
        for rank in (0, 1):
            self.keep_shard(rank, self.hashes)
        lease = self.ranks[0].lookup(self.namespaces[0], self.hashes,
                                     lease_ms=1000 * PATIENCE_S).lease_id
        self.ranks[1].release(lease)
        buffer = self.ranks[1].create_host_buffer(6 * CHUNK_BYTES)
        self.ranks[1].read_step([kvstreamd.ReadRequest(
            namespace=self.namespaces[1], request_id=1, lease_id=lease,
            chunks=self.chunks(buffer, self.hashes, shard=1))]).result()
        self.assertEqual(self.client.status().sessions.leases, 1)

    def test_a_node_with_one_rank_asks_for_its_shard_alone(self):
        namespace = self.client.register_namespace(
            description(model="other", groups=SHARDS), local_shards={0: [1]})
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        self.client.store(namespace, self.chunks(buffer, self.hashes[:1], shard=1)).result()
        self.assertEqual(self.client.lookup(namespace, self.hashes).leading_run, 1)


if __name__ == "__main__":
    unittest.main()
