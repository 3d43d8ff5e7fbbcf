"""Clients that are forgotten, cancelled or closed in vain: sessions end, memory stays a while."""

import asyncio
import gc
import json
import os
import select
import signal
import unittest
import weakref
from unittest import mock

import kvstreamd
from daemon_case import CHUNK_BYTES, PATIENCE_S, DaemonCase, description, prefix_hashes, real_node
from kvstreamd import aio, errors


class Memory:
    """Stands for tensors of a region."""


class LifetimeTest(DaemonCase):
    """Who keeps what alive."""

    def other(self, **options):
        """A client that nobody but the caller has."""
        return kvstreamd.Client(self.node.socket, connect_timeout_s=PATIENCE_S, **options)

    def sessions(self):
        """How many the daemon has."""
        return self.client.status().sessions.open

    def test_a_client_that_is_forgotten_ends_its_session(self):
        client = self.other()
        client.create_host_buffer(CHUNK_BYTES)
        session = client.session
        self.assertEqual(self.sessions(), 2)
        del client
        gc.collect()
        real_node.wait(lambda: self.sessions() == 1, "the session has ended")
        real_node.wait(lambda: session.lost, "the session knows")

    def test_a_client_that_is_forgotten_after_a_reconnect_ends_the_new_session(self):
        client = self.other()
        client.session.abandon(errors.Unavailable("try"))
        client.reconnect()
        self.assertEqual(self.sessions(), 2)
        del client
        gc.collect()
        real_node.wait(lambda: self.sessions() == 1, "the session has ended")

    def test_memory_lives_until_the_daemon_has_let_go_of_it(self):
        client = self.other(call_timeout_s=0.05)
        memory = Memory()
        alive = weakref.ref(memory)
        client.session.hold("region", memory)
        del memory
        real_node.freeze(self.node.process)
        with self.assertRaises(errors.DeadlineExceeded):
            client.close()
        del client
        gc.collect()
        self.assertIsNotNone(alive())
        self.node.process.send_signal(signal.SIGCONT)
        real_node.wait(lambda: alive() is None, "the memory is free")

    def test_memory_of_a_closed_region_is_free(self):
        memory = Memory()
        alive = weakref.ref(memory)
        self.client.session.hold("region", memory)
        del memory
        self.assertIsNotNone(alive())
        self.client.session.let_go("region")
        self.assertIsNone(alive())

    def test_a_connect_that_is_cancelled_leaves_no_session(self):
        async def connect():
            # The daemon stands still, so that this is cancelled amid it.
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(aio.AsyncClient.connect(
                    self.node.socket, connect_timeout_s=PATIENCE_S), 0.05)
            self.node.process.send_signal(signal.SIGCONT)
        real_node.freeze(self.node.process)
        # Returns once the executor's threads have ended: the client was made.
        asyncio.run(connect())
        gc.collect()
        real_node.wait(lambda: self.sessions() == 1, "the session has ended")

    def test_a_close_returns_once_every_future_is_set(self):
        for _ in range(20):
            client = self.other(call_timeout_s=PATIENCE_S, deadline_ms=1000 * PATIENCE_S)
            namespace = client.register_namespace(description())
            operation = client.read_step(
                [kvstreamd.ReadRequest(
                    namespace=namespace, request_id=1,
                    chunks=self.chunks(client.create_host_buffer(CHUNK_BYTES), prefix_hashes(1)))],
                step_id=9, ranks=2, join_timeout_ms=1000 * PATIENCE_S)
            client.close()
            self.assertTrue(operation.done())
            self.assertIsInstance(operation.ended.result(0), errors.SessionLost)

    def test_a_lookup_that_runs_while_its_session_ends_says_so(self):
        namespace = self.client.register_namespace(description())
        session = self.client.session
        real_node.freeze(self.node.process)
        future = self.client.start_lookup(namespace, prefix_hashes(1))
        session.abandon(errors.Unavailable("try"))
        session.channel.close()
        with self.assertRaises(errors.SessionLost):
            future.result(PATIENCE_S)
        # As of a thread that looked at the session just before its end.
        with mock.patch.object(session, "check"):
            with self.assertRaises(errors.SessionLost):
                self.client.lookup(namespace, prefix_hashes(1))
            with self.assertRaises(errors.SessionLost):
                self.client.start_lookup(namespace, prefix_hashes(1))
        self.node.process.send_signal(signal.SIGCONT)

    def test_a_forked_child_leaves_its_parents_session_alone(self):
        namespace = self.client.register_namespace(description())
        self.assertEqual(self.in_a_fork(lambda: self.refusals(namespace)), [])
        self.assertFalse(self.client.lost)
        self.assertEqual(self.client.lookup(namespace, prefix_hashes(1)).leading_run, 0)

    def refusals(self, namespace):
        """What a client does wrong in a forked child."""
        client, wrong = self.client, []
        for call in (client.status, client.reconnect, lambda: client.release(1),
                     lambda: client.lookup(namespace, prefix_hashes(1)),
                     lambda: client.create_host_buffer(CHUNK_BYTES),
                     lambda: client.prefetch(namespace, [], keep_ms=1)):
            try:
                call()
                wrong.append("raised nothing")
            except errors.FailedPrecondition:
                pass
        client.close()
        client.session.abandon(errors.Unavailable("try"))
        return wrong

    def in_a_fork(self, call):
        """What `call` returns in a forked child, which ends with it."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            # Whatever happens, nothing of the test runs on in the child.
            try:
                os.write(writer, json.dumps(call()).encode())
            except BaseException as error:
                os.write(writer, json.dumps([repr(error)]).encode())
            finally:
                os._exit(0)
        os.close(writer)
        self.addCleanup(os.waitpid, child, 0)
        self.addCleanup(os.kill, child, signal.SIGKILL)
        with open(reader, "rb") as answers:
            self.assertTrue(select.select([answers], [], [], PATIENCE_S)[0], "the child hangs")
            return json.loads(answers.read())

    def test_a_session_that_is_over_has_closed_its_channel(self):
        client = self.other()
        client.session.abandon(errors.Unavailable("try"))
        client.close()
        with self.assertRaises(ValueError):
            client.session.channel.unary_unary("/x/y")(b"", timeout=PATIENCE_S)


if __name__ == "__main__":
    unittest.main()
