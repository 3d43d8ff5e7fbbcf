"""The client when its daemon dies, restarts or stands still. Never wrong bytes; a miss is fine."""

import concurrent.futures
import contextlib
import signal
import unittest

import kvstreamd
from daemon_case import CHUNK_BYTES, PATIENCE_S, DaemonCase, description, prefix_hashes, real_node
from kvstreamd import errors


class RestartTest(DaemonCase):
    """What is said, and what is kept."""

    def setUp(self):
        super().setUp()
        self.namespace = self.client.register_namespace(description())
        self.hashes = prefix_hashes(16)
        self.keep(self.namespace, self.hashes)
        self.written_everywhere()

    def restart(self):
        """Another boot of the daemon, after a crash."""
        self.node.kill()
        self.node.start()

    def test_a_reconnect_registers_everything_with_the_new_boot(self):
        buffer = self.client.create_host_buffer(2 * CHUNK_BYTES)
        buffer.array[:] = 5
        boot, session = self.client.boot_id, self.client.session_id
        namespace_id, buffer_view = self.namespace.id, buffer.array
        self.restart()
        self.assertTrue(self.client.reconnect())
        self.assertNotEqual(self.client.boot_id, boot)
        self.assertNotEqual(self.client.session_id, session)
        self.assertEqual(self.namespace.id, namespace_id)
        self.assertEqual(int(buffer_view[0]), 5)
        operation = self.client.read_step([kvstreamd.ReadRequest(
            namespace=self.namespace, request_id=1,
            chunks=self.chunks(buffer, self.hashes[:2]))])
        outcome = operation.result()[0]
        self.assertEqual(outcome.leading_valid, 2)
        self.check_bytes(buffer, self.hashes, outcome)
        self.assertFalse(self.client.reconnect())

    def test_every_call_says_that_the_session_is_lost(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        self.restart()
        calls = [lambda: self.client.lookup(self.namespace, self.hashes),
                 lambda: self.client.register_namespace(description()),
                 lambda: self.client.create_host_buffer(CHUNK_BYTES),
                 self.client.status,
                 self.client.forward_began,
                 lambda: self.client.store(self.namespace, self.chunks(buffer, self.hashes[:1]))]
        # The kernel has told of the daemon's end before its successor answers, the threads that
        # read of it may be a moment behind.
        real_node.wait(lambda: self.client.lost, "the client knows")
        for call in calls:
            with self.assertRaises(errors.SessionLost):
                call()
        # Clean-up has nothing to complain of.
        self.client.release(1)
        self.client.reconnect()
        self.assertEqual(self.load(self.namespace, self.hashes).leading_valid, 16)

    def test_an_answer_of_another_boot_is_noticed(self):
        session = self.client.session
        reply = self.client.status()
        reply.boot_id = b"another boot ..."
        with self.assertRaises(errors.BootChanged):
            session.check_boot(reply)
        with self.assertRaises(errors.BootChanged):
            self.client.lookup(self.namespace, self.hashes)
        self.assertFalse(self.client.reconnect())
        self.assertEqual(self.client.lookup(self.namespace, self.hashes).leading_run, 16)

    def test_a_reconnect_without_a_daemon_may_be_tried_again(self):
        self.node.kill()
        with self.assertRaises(errors.KVStreamError):
            self.client.reconnect()
        self.node.start()
        self.assertTrue(self.client.reconnect())
        self.assertEqual(self.load(self.namespace, self.hashes).leading_valid, 16)

    def test_a_reconnect_that_fails_half_way_leaves_a_lost_session(self):
        buffer = self.client.create_host_buffer(2 * CHUNK_BYTES)
        self.client.register_namespace(description(segment_bytes=4 << 20))
        config = self.node.config.read_text(encoding="utf-8")
        self.node.kill()
        # A boot that takes the buffer, and refuses the second namespace.
        lower = config.replace("segment_kib_max: 4096", "segment_kib_max: 1024")
        self.node.config.write_text(lower, encoding="utf-8")
        self.node.start()
        step = [kvstreamd.ReadRequest(namespace=self.namespace, request_id=1,
                                      chunks=self.chunks(buffer, self.hashes[:2]))]
        for _ in range(2):
            with self.assertRaises(errors.InvalidArgument):
                self.client.reconnect()
            for call in (lambda: self.client.read_step(step),
                         lambda: self.client.lookup(self.namespace, self.hashes),
                         lambda: self.client.drop_host_buffer(buffer)):
                with self.assertRaises(errors.SessionLost):
                    call()
        self.node.config.write_text(config, encoding="utf-8")
        self.restart()
        self.assertTrue(self.client.reconnect())
        outcome = self.client.read_step(step).result()[0]
        self.assertEqual(outcome.leading_valid, 2)
        self.check_bytes(buffer, self.hashes, outcome)

    def test_a_session_that_lives_is_kept_by_a_reconnect(self):
        self.restart()
        real_node.wait(lambda: self.client.lost, "the client knows")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(self.client.reconnect) for _ in range(4)]
            others = [call.result(PATIENCE_S) for call in calls]
        self.assertEqual(sorted(others), [False, False, False, True])
        self.assertEqual(self.client.status().sessions.opened, 1)

    def test_a_daemon_killed_in_the_middle_of_a_step_gives_a_typed_error(self):
        for _ in range(5):
            buffer = self.client.create_host_buffer(16 * CHUNK_BYTES)
            step = [kvstreamd.ReadRequest(namespace=self.namespace, request_id=i,
                                          chunks=self.chunks(buffer, [each], first=i))
                    for i, each in enumerate(self.hashes)]
            operation = self.client.read_step(step, mode=kvstreamd.Mode.INDEPENDENT)
            operation.requests[0].result(PATIENCE_S)
            self.node.kill()
            error = operation.ended.result(PATIENCE_S)
            # It may have been done before it was killed.
            self.assertIn(type(error), (errors.SessionLost, type(None)))
            for i, future in enumerate(operation.requests):
                outcome = future.result(0)
                self.check_bytes(buffer, [self.hashes[i]], outcome, first=i)
                if outcome.leading_valid == 0:
                    self.assertIsInstance(outcome.error, errors.SessionLost)
            self.node.start()
            self.client.reconnect()
            self.client.drop_host_buffer(buffer)

    def test_a_daemon_killed_while_a_step_waits_ends_it(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        operation = self.client.read_step(
            [kvstreamd.ReadRequest(namespace=self.namespace, request_id=1,
                                   chunks=self.chunks(buffer, self.hashes[:1]))],
            step_id=7, ranks=2, join_timeout_ms=1000 * PATIENCE_S)
        self.node.kill()
        with self.assertRaises(errors.SessionLost):
            operation.result()
        self.assertEqual(operation.requests[0].result(0).leading_valid, 0)

    def test_a_daemon_killed_before_a_store_is_durable_has_not_kept_it(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        real_node.freeze(self.node.process)
        store = self.client.store(self.namespace, self.chunks(buffer, [b"never stored key"]),
                                  durable=True)
        self.node.kill()
        self.assertIsInstance(store.ended.result(PATIENCE_S), errors.SessionLost)
        self.assertEqual([chunk.code for chunk in store.durable.result(0)],
                         [kvstreamd.Code.UNAVAILABLE])

    def test_a_daemon_that_stands_still_holds_memory_until_it_is_gone(self):
        client = self.connect()
        buffer = client.create_host_buffer(CHUNK_BYTES)
        namespace = client.register_namespace(description())
        real_node.freeze(self.node.process)
        operation = client.read_step([kvstreamd.ReadRequest(
            namespace=namespace, request_id=1, chunks=self.chunks(buffer, self.hashes[:1]))])
        with self.allowed(client, 0.05):
            with self.assertRaises(errors.DeadlineExceeded):
                client.lookup(namespace, self.hashes)
            with self.assertRaises(errors.DeadlineExceeded):
                client.close()
            with self.assertRaises(errors.DeadlineExceeded):
                client.reconnect()
        self.assertFalse(operation.done())
        self.node.process.send_signal(signal.SIGCONT)
        self.assertIsInstance(operation.ended.result(PATIENCE_S), errors.KVStreamError)

    def test_what_cleans_up_goes_into_a_full_queue(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        operation = self.client.read_step(
            [kvstreamd.ReadRequest(namespace=self.namespace, request_id=1,
                                   chunks=self.chunks(buffer, self.hashes[:1]))],
            step_id=8, ranks=2, join_timeout_ms=1000 * PATIENCE_S)
        lease_id = self.client.lookup(self.namespace, self.hashes,
                                      lease_ms=1000 * PATIENCE_S).lease_id
        real_node.freeze(self.node.process)
        # gRPC takes some before the daemon does; what has no room then is the client's.
        with self.assertRaises(errors.ResourceExhausted):
            while True:
                self.client.forward_began()
        operation.cancel()
        self.client.release(lease_id)
        self.node.process.send_signal(signal.SIGCONT)
        self.assertIsInstance(operation.ended.result(PATIENCE_S), errors.Cancelled)
        real_node.wait(lambda: self.client.status().sessions.leases == 0, "the lease is back")

    def test_no_call_waits_longer_than_it_may_for_another_thread(self):
        client = self.connect()
        with self.allowed(client, 0.05), concurrent.futures.ThreadPoolExecutor(1) as pool:
            # As a reconnect does, which may take several calls' time.
            with client._changing():  # pylint: disable=protected-access
                call = pool.submit(client.create_host_buffer, CHUNK_BYTES)
                self.assertIsInstance(call.exception(PATIENCE_S), errors.DeadlineExceeded)

    def test_no_time_at_all_is_a_time(self):
        real_node.freeze(self.node.process)
        with self.assertRaises(errors.DeadlineExceeded):
            self.client.status(timeout_s=0)
        with self.assertRaises(errors.DeadlineExceeded):
            self.client.lookup(self.namespace, self.hashes, timeout_s=0)
        self.node.process.send_signal(signal.SIGCONT)

    @staticmethod
    @contextlib.contextmanager
    def allowed(client, call_timeout_s):
        """Meanwhile a call may take so long; what sets up and cleans up has more time."""
        before, client._call_timeout_s = client._call_timeout_s, call_timeout_s
        try:
            yield
        finally:
            client._call_timeout_s = before

    def test_a_daemon_that_stops_lets_its_clients_know(self):
        self.assertEqual(self.node.stop(), 0)
        real_node.wait(lambda: self.client.lost, "the client knows")
        with self.assertRaises(errors.SessionLost):
            self.client.lookup(self.namespace, self.hashes)


if __name__ == "__main__":
    unittest.main()
