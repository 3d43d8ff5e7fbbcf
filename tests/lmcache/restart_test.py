"""The daemon dies, hangs and comes back; disks lie."""

import signal

from daemon_case import CHUNK_BYTES, real_node
from lmcache_case import LmcacheCase, keys


class RestartTest(LmcacheCase):
    """A clear error or a miss, never a wait without end; and then it goes on by itself."""

    def test_while_the_daemon_is_dead_all_fails_with_a_clear_error(self):
        self.stored(keys(2))
        self.node.kill()
        real_node.wait(lambda: not self.wait_for(self.connector.submit_batch_exists(keys(1)))[0],
                       "the connector knows")
        for good, error, results in (self.load(keys(2)), self.store(keys(2)),
                                     self.wait_for(self.connector.submit_batch_exists(keys(2))),
                                     self.wait_for(self.connector.submit_batch_delete(keys(2)))):
            self.assertEqual((good, results), (False, [False, False]))
            self.assertIn(f"kvstreamd at {self.node.socket} is away", error)

    def test_after_a_restart_what_was_stored_is_found_and_loaded(self):
        names = keys(6)
        self.stored(names)
        self.written_everywhere()
        for end in (self.node.stop, self.node.kill):
            end()
            self.node.start()
            self.connected_again()
            self.assertEqual(self.found(names), [True] * 6)
            self.assertEqual(self.loaded(names), [True] * 6)
        self.assertEqual(self.connector.counters()["connections_lost"], 2)

    def test_a_connector_that_begins_after_a_restart_finds_it_too(self):
        names = keys(3)
        self.stored(names)
        # A store that finds all there, for the size to be noted and written by then.
        real_node.wait(lambda: self.found(names, connector=self.connect_lmcache()) == [True] * 3,
                       "the size is noted")
        self.written_everywhere()
        self.node.stop()
        self.node.start()
        other = self.connect_lmcache()
        self.assertEqual(self.found(names, connector=other), [True] * 3)
        self.assertEqual(self.loaded(names, connector=other), [True] * 3)

    def test_a_daemon_that_dies_in_a_load_or_a_store_ends_it(self):
        names = keys(64)
        self.stored(names)
        real_node.freeze(self.node.process)
        load = self.connector.submit_batch_get(names, [memoryview(bytearray(CHUNK_BYTES))
                                                       for _ in names])
        self.node.kill()
        good, _, results = self.wait_for(load)
        self.assertEqual((good, results), (False, [False] * 64))
        self.node.start()
        self.connected_again()
        self.assertEqual(self.loaded(names), [True] * 64)

    def test_a_daemon_that_hangs_costs_a_deadline_and_is_used_again_when_it_goes_on(self):
        connector = self.connect_lmcache(load_deadline_ms=200, store_deadline_ms=200,
                                         lookup_timeout_ms=200)
        names = keys(4)
        self.stored(names, connector=connector)
        real_node.freeze(self.node.process)
        for good, error, results in (self.load(names, connector=connector),
                                     self.store(keys(4, seed="new"), connector=connector)):
            self.assertEqual((good, results), (False, [False] * 4))
            self.assertIn("nothing moved for 200 ms", error)
        good, error, _ = self.wait_for(connector.submit_batch_exists(names), connector)
        self.assertFalse(good)
        self.assertIn("look up", error)
        self.node.process.send_signal(signal.SIGCONT)
        self.connected_again(connector)
        real_node.wait(lambda: self.loaded(names, connector=connector) == [True] * 4,
                       "it loads again")

    def test_a_connector_that_begins_without_a_daemon_uses_it_once_it_is_there(self):
        self.node.stop()
        connector = self.connect_lmcache()
        self.assertFalse(self.store(keys(1), connector=connector)[0])
        self.node.start()
        self.connected_again(connector)
        self.stored(keys(1), connector=connector)

    def test_a_damaged_object_is_a_miss_and_can_be_stored_again(self):
        names = keys(2)
        self.stored(names)
        self.written_everywhere()
        for tier in ("nvme", "pfs"):
            for file in self.node.files(tier):
                if file.stat().st_size > CHUNK_BYTES:
                    with open(file, "r+b") as opened:
                        opened.seek(CHUNK_BYTES // 2)
                        byte = opened.read(1)
                        opened.seek(CHUNK_BYTES // 2)
                        opened.write(bytes([byte[0] ^ 1]))
        self.assertEqual(self.loaded(names), [False] * 2)
        self.stored(names)
        self.assertEqual(self.loaded(names), [True] * 2)
