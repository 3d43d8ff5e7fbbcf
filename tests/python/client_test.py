"""The client against a real daemon: sessions, memory, lookups, steps, stores, errors."""

import concurrent.futures
import contextlib
import os
import socket
import tempfile
import threading
import unittest

import numpy as np

import kvstreamd
from daemon_case import (CHUNK_BYTES, PATIENCE_S, DaemonCase, chunk_bytes_of, description,
                         prefix_hashes, real_node)
from kvstreamd import errors, handoff, protocol, requests
from kvstreamd.errors import Code


class ProtocolTest(unittest.TestCase):
    """What is written down here as well as in the protocol."""

    def test_words_of_errors_are_the_protocols(self):
        self.assertEqual({code.name: code.value for code in Code}, protocol.enum_numbers("Code"))

    def test_every_word_but_ok_has_a_class_of_its_own(self):
        classes = {type(errors.from_code(code, "try", "")) for code in Code if code != Code.OK}
        self.assertEqual(len(classes), len(Code) - 1)
        self.assertIsNone(errors.from_code(Code.OK, "try", ""))

    def test_a_word_of_a_later_protocol_is_no_success(self):
        self.assertIsInstance(errors.from_code(99, "try", ""), errors.Unavailable)

    def test_modes_are_the_protocols(self):
        modes = {f"MODE_{mode.name}": mode.value for mode in requests.Mode}
        self.assertEqual({"MODE_UNSPECIFIED": 0, **modes},
                         dict(protocol.message("ReadStep").Mode.items()))


class ConnectTest(unittest.TestCase):
    """Without a daemon."""

    def test_a_socket_that_is_not_there_is_not_found(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(errors.NotFound):
                kvstreamd.Client(os.path.join(folder, "none"))

    def test_a_path_that_is_too_long_is_an_invalid_argument(self):
        with self.assertRaises(errors.InvalidArgument):
            kvstreamd.Client("/tmp/" + "x" * 200)

    def test_a_socket_that_nobody_answers_on_exceeds_the_deadline(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mute.handoff")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
                mute.bind(path)
                mute.listen()
                with self.assertRaises(errors.DeadlineExceeded):
                    kvstreamd.Client(path.removesuffix(".handoff"), connect_timeout_s=0.05)


    def test_a_connect_waits_while_too_many_others_do(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            path = os.path.join(folder, "busy.handoff")
            busy = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            busy.bind(path)
            busy.listen(1)
            with self.assertRaises(BlockingIOError):
                while True:
                    other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    stack.enter_context(other).setblocking(False)
                    other.connect(path)
            with self.assertRaises(errors.DeadlineExceeded):
                kvstreamd.Client(path.removesuffix(".handoff"), connect_timeout_s=0.05)

    def test_a_daemon_that_reads_nothing_exceeds_the_deadline(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            path = os.path.join(folder, "deaf")
            deaf = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            deaf.bind(path)
            deaf.listen()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                connecting = pool.submit(handoff.HandoffConnection, path, PATIENCE_S)
                peer = stack.enter_context(deaf.accept()[0])
                peer.send(protocol.HandoffReply(welcome={"token": b"t"}).SerializeToString())
                connection = connecting.result(PATIENCE_S)
            stack.callback(connection.discard)
            # Until the socket is full: then it is the sending that does not end.
            causes = set()
            while not any("does not read" in cause for cause in causes):
                with self.assertRaises(errors.DeadlineExceeded) as raised:
                    connection.call(protocol.HandoffRequest(), None, 0.001)
                causes.add(str(raised.exception))


class SessionTest(DaemonCase):
    """A session and its memory."""

    def test_a_session_knows_its_daemon(self):
        self.assertEqual(len(self.client.boot_id), 16)
        self.assertEqual(self.client.boot_id, self.client.status().boot_id)
        self.assertNotEqual(self.client.session_id, 0)
        self.assertGreater(self.client.limits.chunks_per_operation_max, 0)
        self.assertRegex(self.client.daemon_version, r"^\d+\.\d+\.\d+")

    def test_the_daemon_lets_go_when_a_client_closes(self):
        client = self.connect()
        namespace = client.register_namespace(description())
        client.create_host_buffer(CHUNK_BYTES)
        # The daemon counts it a moment after it has answered.
        real_node.wait(lambda: self.client.status().sessions.host_buffers == 1, "it has the buffer")
        client.close()
        client.close()
        self.assertTrue(client.lost)
        self.assertEqual(self.client.status().sessions.host_buffers, 0)
        with self.assertRaises(errors.SessionLost):
            client.lookup(namespace, [b"k" * 16])
        with self.assertRaises(errors.SessionLost):
            client.register_namespace(description())

    def test_a_buffer_is_the_same_memory_in_every_view(self):
        buffer = self.client.create_host_buffer(5000)
        self.assertEqual(buffer.nbytes, 8192)
        words = buffer.numpy(np.uint32, (2, 3), offset=4096)
        words[1, 2] = 0x01020304
        self.assertEqual(bytes(buffer.array[4096 + 20:4096 + 24]), b"\x04\x03\x02\x01")
        with self.assertRaises(errors.InvalidArgument):
            buffer.numpy(np.uint32, (1025,), offset=4096)
        with self.assertRaises(errors.InvalidArgument):
            buffer.numpy(np.uint8, (1,), offset=-1)

    def test_a_tensor_shares_a_buffers_memory(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs PyTorch")
        buffer = self.client.create_host_buffer(4096)
        buffer.torch(torch.bfloat16, (4, 8), offset=64).fill_(1.0)
        self.assertEqual(buffer.array[64:128].tobytes(), b"\x80\x3f" * 32)

    def test_views_of_a_dropped_buffer_stay_valid(self):
        buffer = self.client.create_host_buffer(4096)
        view = buffer.array
        self.client.drop_host_buffer(buffer)
        del buffer
        view[:] = 7
        self.assertEqual(int(view.sum()), 7 * 4096)

    def test_memory_cannot_be_shrunk_under_the_daemon(self):
        buffer = self.client.create_host_buffer(8192)
        with self.assertRaises(PermissionError):
            os.ftruncate(buffer.fd, 4096)

    def test_memory_of_another_session_is_refused(self):
        namespace = self.client.register_namespace(description())
        other = self.connect()
        buffer = other.create_host_buffer(CHUNK_BYTES)
        with self.assertRaises(errors.FailedPrecondition):
            self.client.store(namespace, self.chunks(buffer, prefix_hashes(1)))
        with self.assertRaises(errors.FailedPrecondition):
            other.lookup(namespace, prefix_hashes(1))

    def test_what_the_daemon_refuses_names_the_field(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "weights_fingerprint"):
            self.client.register_namespace(description(weights_fingerprint=b""))
        with self.assertRaisesRegex(errors.InvalidArgument, "describe namespace"):
            self.client.register_namespace(description(chunk_tokens="many"))

    def test_without_a_gpu_a_region_says_so(self):
        class Tensor:
            """Of one block on a device that is not there."""
            shape, stride = (1, 16), lambda self: (16, 1)
            data_ptr, element_size = lambda self: 4096, lambda self: 2
        if self.client.status().gpus:
            self.skipTest("the daemon has a GPU")
        with self.assertRaises((errors.FailedPrecondition, errors.InvalidArgument)):
            self.client.register_region([Tensor()])


class OperationsTest(DaemonCase):
    """Lookups, steps and stores."""

    def setUp(self):
        super().setUp()
        self.namespace = self.client.register_namespace(description())
        self.hashes = prefix_hashes(8)

    def test_what_is_stored_is_found_and_read_back(self):
        stored = self.keep(self.namespace, self.hashes[:6])
        self.assertEqual([chunk.code for chunk in stored], [Code.OK] * 6)
        found = self.client.lookup(self.namespace, self.hashes)
        self.assertEqual(found.leading_run, 6)
        self.assertEqual(self.load(self.namespace, self.hashes[:6]).leading_valid, 6)

    def test_a_miss_ends_a_step_with_not_found_and_keeps_the_rest(self):
        self.keep(self.namespace, [self.hashes[0], self.hashes[2]])
        outcome = self.load(self.namespace, self.hashes[:3])
        self.assertEqual((outcome.leading_valid, outcome.other_valid), (1, (2,)))
        self.assertIsInstance(outcome.error, errors.NotFound)
        self.assertEqual(outcome.code, Code.NOT_FOUND)

    def test_the_result_of_a_step_raises_its_first_failure(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        operation = self.client.read_step([kvstreamd.ReadRequest(
            namespace=self.namespace, request_id=1, chunks=self.chunks(buffer, self.hashes[:1]))])
        with self.assertRaises(errors.NotFound):
            operation.result()

    def test_lookups_answer_for_each_key_where_asked(self):
        self.keep(self.namespace, [self.hashes[0], self.hashes[2]])
        found = self.client.start_lookup(self.namespace, self.hashes[:3], per_key=True)
        self.assertEqual(found.result(PATIENCE_S).present, (True, False, True))

    def test_a_lookup_of_hashes_of_two_lengths_is_refused(self):
        with self.assertRaises(errors.InvalidArgument):
            self.client.lookup(self.namespace, [self.hashes[0], self.hashes[1][:16]])

    def test_a_lookup_ahead_of_time_fails_in_its_future(self):
        future = self.client.start_lookup(self.namespace, [b"short"])
        with self.assertRaises(errors.InvalidArgument):
            future.result(PATIENCE_S)

    def test_a_lease_is_held_until_it_is_released(self):
        self.keep(self.namespace, self.hashes)
        found = self.client.lookup(self.namespace, self.hashes, lease_ms=1000 * PATIENCE_S)
        self.assertNotEqual(found.lease_id, 0)
        self.assertEqual(self.client.status().sessions.leases, 1)
        self.assertEqual(self.load(self.namespace, self.hashes,
                                   lease_id=found.lease_id).leading_valid, 8)
        self.client.release(found.lease_id)
        # A message on the session stream; what follows it there has seen it done.
        self.load(self.namespace, self.hashes)
        self.assertEqual(self.client.status().sessions.leases, 0)

    def test_a_key_that_is_there_is_not_copied_again(self):
        self.keep(self.namespace, self.hashes[:1])
        self.assertTrue(self.keep(self.namespace, self.hashes[:1])[0].existed)

    def test_released_memory_may_be_reused_at_once(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        for prefix_hash in self.hashes:
            buffer.array[:] = chunk_bytes_of(prefix_hash)
            store = self.client.store(self.namespace, self.chunks(buffer, [prefix_hash]),
                                      admission_ms=1000 * PATIENCE_S)
            self.assertEqual(store.released.result(PATIENCE_S)[0].code, Code.OK)
            self.assertIsNone(store.durable)
            buffer.array[:] = 0
        self.assertEqual(self.load(self.namespace, self.hashes).leading_valid, 8)

    def test_requests_of_an_independent_step_have_outcomes_of_their_own(self):
        self.keep(self.namespace, self.hashes[:4])
        buffer = self.client.create_host_buffer(8 * CHUNK_BYTES)
        step = [kvstreamd.ReadRequest(namespace=self.namespace, request_id=10 + i,
                                      chunks=self.chunks(buffer, [each], first=i))
                for i, each in enumerate(self.hashes)]
        operation = self.client.read_step(step, mode=kvstreamd.Mode.INDEPENDENT)
        outcomes = [future.result(PATIENCE_S) for future in operation.requests]
        self.assertEqual([outcome.request_id for outcome in outcomes], list(range(10, 18)))
        self.assertEqual([outcome.leading_valid for outcome in outcomes], [1] * 4 + [0] * 4)
        self.assertIsInstance(operation.ended.result(PATIENCE_S), errors.NotFound)

    def test_operations_run_from_many_threads(self):
        self.keep(self.namespace, self.hashes)
        failures = []

        def work():
            client = self.client
            try:
                for _ in range(10):
                    self.assertEqual(self.load(self.namespace, self.hashes,
                                               client=client).leading_valid, 8)
            except BaseException as error:  # To be told by the test's own thread.
                failures.append(error)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])

    def test_a_deadline_ends_a_step(self):
        operation = self._step_that_waits(deadline_ms=50)
        with self.assertRaises(errors.DeadlineExceeded):
            operation.result()

    def test_a_cancelled_step_ends_with_cancelled(self):
        operation = self._step_that_waits()
        self.assertFalse(operation.done())
        with self.assertRaises(errors.StillRunning):
            operation.result(0)
        operation.cancel()
        with self.assertRaises(errors.Cancelled):
            operation.result()
        operation.cancel()

    def test_a_buffer_in_use_is_not_given_back(self):
        operation = self._step_that_waits()
        buffer = self.buffer
        real_node.wait(lambda: self.client.status().operations.running, "the step has begun")
        with self.assertRaises(errors.FailedPrecondition):
            self.client.drop_host_buffer(buffer)
        operation.cancel()
        self.assertTrue(operation.wait())
        self.client.drop_host_buffer(buffer)

    def _step_that_waits(self, **options):
        """For another rank, which never comes."""
        self.keep(self.namespace, self.hashes[:1])
        self.buffer = self.client.create_host_buffer(CHUNK_BYTES)
        operation = self.client.read_step(
            [kvstreamd.ReadRequest(namespace=self.namespace, request_id=1,
                                   chunks=self.chunks(self.buffer, self.hashes[:1]))],
            step_id=77, ranks=2, join_timeout_ms=1000 * PATIENCE_S, **options)
        return operation

    def test_futures_cannot_be_cancelled_under_the_daemon(self):
        operation = self._step_that_waits()
        self.assertFalse(operation.ended.cancel())
        self.assertFalse(operation.requests[0].cancel())
        operation.cancel()
        self.assertTrue(operation.wait())

    def test_a_refused_operation_ends_with_the_reason(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        store = self.client.store(self.namespace, [kvstreamd.ChunkAt(b"short", buffer.at(0))])
        self.assertIsInstance(store.ended.result(PATIENCE_S), errors.InvalidArgument)
        self.assertTrue(store.released.done())
        with self.assertRaises(errors.InvalidArgument):
            self.client.store(self.namespace, [kvstreamd.ChunkAt("text", buffer.at(0))])
        with self.assertRaises(errors.InvalidArgument):
            self.client.store(self.namespace, self.chunks(buffer, self.hashes[:1]), deadline_ms=-1)

    def test_a_place_outside_of_its_buffer_is_refused(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        store = self.client.store(self.namespace, self.chunks(buffer, self.hashes[:1], first=1))
        self.assertIsInstance(store.ended.result(PATIENCE_S), errors.InvalidArgument)

    def test_an_operation_that_is_too_large_for_a_message_leaves_the_session_alone(self):
        buffer = self.client.create_host_buffer(CHUNK_BYTES)
        with self.assertRaisesRegex(errors.InvalidArgument, "bytes, more than"):
            self.client.store(self.namespace, self.chunks(buffer, self.hashes[:1]),
                              after_prefix_hash=bytes(self.client.limits.message_bytes_max))
        self.assertEqual(self.keep(self.namespace, self.hashes[:1])[0].code, Code.OK)

    def test_a_prefetch_ends_by_itself(self):
        self.keep(self.namespace, self.hashes)
        operation = self.client.prefetch(
            self.namespace, [kvstreamd.ChunkAt(each, None) for each in self.hashes], keep_ms=1000)
        self.assertIn(type(operation.ended.result(PATIENCE_S)),
                      (type(None), errors.Unimplemented))
        self.client.forward_began()
        self.assertEqual(self.load(self.namespace, self.hashes).leading_valid, 8)


class DamageTest(DaemonCase):
    """Never wrong bytes."""

    def test_bytes_damaged_on_every_tier_are_a_miss(self):
        namespace, hashes = self.client.register_namespace(description()), prefix_hashes(2)
        self.keep(namespace, hashes)
        self.written_everywhere()
        self.assertEqual([self._damage(tier) for tier in ("nvme", "pfs")], [2, 2])
        outcome = self.load(namespace, hashes)
        self.assertEqual((outcome.leading_valid, outcome.other_valid), (0, ()))
        self.assertIn(outcome.code, (Code.DATA_LOSS, Code.NOT_FOUND))

    def test_bytes_damaged_on_one_tier_are_read_from_the_other(self):
        namespace, hashes = self.client.register_namespace(description()), prefix_hashes(2)
        self.keep(namespace, hashes)
        self.written_everywhere()
        self._damage("nvme")
        self.assertEqual(self.load(namespace, hashes).leading_valid, 2)

    def _damage(self, tier):
        files = self.node.files(tier)
        for path in files:
            with open(path, "r+b") as file:
                file.seek(4096 + CHUNK_BYTES // 2)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1]))
        return len(files)


if __name__ == "__main__":
    unittest.main()
