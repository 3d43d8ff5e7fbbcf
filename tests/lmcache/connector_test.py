"""Submissions and completions, against a daemon."""

import select
import threading

import numpy as np

from daemon_case import CHUNK_BYTES, PATIENCE_S, real_node
from lmcache_case import LmcacheCase, key, keys, payload


class ConnectorTest(LmcacheCase):
    """A hit is the object that was stored, whole; all else is a miss."""

    def test_what_is_stored_is_found_and_loaded(self):
        names = keys(20)
        self.assertEqual(self.found(names), [False] * 20)
        self.stored(names)
        self.assertEqual(self.found(names + keys(2, seed="other")), [True] * 20 + [False] * 2)
        self.assertEqual(self.load(names)[::2], (True, [True] * 20))

    def test_hits_and_misses_of_one_load_are_told_apart(self):
        names = keys(9)
        self.stored(names[::2])
        good, error, results = self.load(names)
        self.assertFalse(good)
        self.assertIn("read request", error)
        self.assertEqual(results, [True, False] * 4 + [True])

    def test_a_submission_larger_than_the_host_buffer_runs_in_parts(self):
        names = keys(3 * 64)
        self.stored(names)
        self.assertEqual(self.loaded(names), [True] * len(names))

    def test_many_submissions_at_once_complete_once_each(self):
        batches = [keys(5, seed=f"batch {number}") for number in range(40)]
        pending = {}
        for names in batches:
            buffers = [payload(name) for name in names]
            pending[self.connector.submit_batch_set(names, list(map(memoryview, buffers)))] = names
        while pending:
            poll = select.poll()
            poll.register(self.connector.event_fd(), select.POLLIN)
            self.assertTrue(poll.poll(1000 * PATIENCE_S))
            for number, good, error, results in self.connector.drain_completions():
                self.assertTrue(good, error)
                self.assertEqual(results, [True] * len(pending.pop(number)))
        for names in batches:
            self.assertEqual(self.loaded(names), [True] * 5)

    def test_one_load_may_be_of_many_models_ranks_groups_and_tenants(self):
        names = [key(i, model=model, rank=rank, group=group, salt=salt)
                 for i in range(2) for model in ("a", "b") for rank in (0x01000100, 0x02010201)
                 for group in (0, 17) for salt in ("", "x")]
        self.stored(names)
        self.assertEqual(self.found(names), [True] * len(names))
        self.assertEqual(self.loaded(names), [True] * len(names))

    def test_hundreds_of_ranks_and_groups_need_no_namespace_each(self):
        names = [key(0, rank=rank << 24, group=group) for rank in range(1, 64)
                 for group in range(5)]
        self.stored(names, nbytes=4096)
        self.assertEqual(self.found(names), [True] * len(names))
        self.assertEqual(self.loaded(names, nbytes=4096), [True] * len(names))
        # Of the objects, and of the notes of their size.
        self.assertLessEqual(self.client.status().index.namespaces, 2)

    def test_an_object_of_another_size_is_another_object(self):
        name = key(0)
        self.stored([name])
        for nbytes in (CHUNK_BYTES // 2, CHUNK_BYTES + 1, 2 * CHUNK_BYTES):
            self.assertEqual(self.loaded([name], nbytes=nbytes), [False])
        self.assertEqual(self.loaded([name]), [True])
        # Kept beside the other; the lookup speaks of the size that this process stores now.
        self.stored([name], nbytes=2 * CHUNK_BYTES)
        self.assertEqual(self.loaded([name], nbytes=2 * CHUNK_BYTES), [True])
        self.assertEqual(self.loaded([name]), [True])

    def test_objects_of_odd_sizes_and_of_one_byte_are_kept(self):
        for nbytes in (1, 4095, 4097, 3 * CHUNK_BYTES + 7):
            names = keys(3, model=f"model of {nbytes}")
            self.stored(names, nbytes=nbytes)
            self.assertEqual(self.loaded(names, nbytes=nbytes), [True] * 3)

    def test_an_object_that_fits_nowhere_is_refused_with_the_option_to_raise(self):
        good, error, results = self.store([key(0)], nbytes=(8 << 20) + 1)
        self.assertEqual((good, results), (False, [False]))
        self.assertIn("host_buffer_mib", error)
        self.stored([key(1)])

    def test_keys_of_no_known_form_are_misses_among_others_that_are_not(self):
        names = [key(0), "no key", key(1)]
        self.assertEqual(self.store(names)[::2], [False, [True, False, True]])
        self.assertEqual(self.found(names), [True, False, True])
        self.assertEqual(self.loaded(names), [True, False, True])
        self.assertEqual(self.connector.counters()["refused_objects"], 3)

    def test_a_new_connector_finds_what_another_has_stored(self):
        names = keys(4)
        self.stored(names)
        # The size is noted by then, or a moment later.
        other = self.connect_lmcache()
        real_node.wait(lambda: self.found(names, connector=other) == [True] * 4,
                       "its objects are found")
        self.assertEqual(self.loaded(names, connector=other), [True] * 4)

    def test_sizes_that_two_have_stored_are_both_found(self):
        ours, theirs = keys(2), keys(2, seed="theirs")
        self.stored(ours)
        other = self.connect_lmcache()
        self.stored(theirs, connector=other, nbytes=3 * CHUNK_BYTES)
        third = self.connect_lmcache()
        real_node.wait(lambda: self.found(ours + theirs, connector=third) == [True] * 4
                       or self.stored(ours) or self.stored(theirs, connector=other,
                                                           nbytes=3 * CHUNK_BYTES),
                       "objects of both sizes are found")
        self.assertEqual(self.loaded(ours, connector=third), [True] * 2)
        self.assertEqual(self.loaded(theirs, connector=third, nbytes=3 * CHUNK_BYTES), [True] * 2)

    def test_what_is_deleted_is_gone_and_the_rest_stays(self):
        ours, others = keys(3), keys(3, salt="other tenant")
        self.stored(ours)
        self.stored(others)
        self.written_everywhere()
        number = self.connector.submit_batch_delete(ours + ["no key"])
        self.assertEqual(self.wait_for(number), [True, "", [True] * 3 + [False]])
        self.assertEqual(self.found(ours + others), [False] * 3 + [True] * 3)
        self.assertEqual(self.loaded(ours), [False] * 3)

    def test_a_deletion_takes_nothing_else_that_was_stored_with_it(self):
        names = keys(5)
        connector = self.connect_lmcache(lease_ms=0)
        self.stored(names, connector=connector)
        self.written_everywhere()
        number = connector.submit_batch_delete(names[:3])
        self.assertEqual(self.wait_for(number, connector), [True, "", [True] * 3])
        self.assertEqual(self.loaded(names, connector=connector), [False] * 3 + [True] * 2)

    def test_too_many_objects_at_once_are_refused_and_forgotten(self):
        small = self.connect_lmcache(queued_objects=4)
        good, error, results = self.store(keys(5), connector=small)
        self.assertEqual((good, results), (False, [False] * 5))
        self.assertIn("queued_objects is 4", error)
        for _ in range(3):
            self.stored(keys(4), connector=small)

    def test_a_submission_of_nothing_completes(self):
        for submit in (lambda: self.connector.submit_batch_get([], []),
                       lambda: self.connector.submit_batch_set([], []),
                       lambda: self.connector.submit_batch_exists([]),
                       lambda: self.connector.submit_batch_delete([])):
            self.assertEqual(self.wait_for(submit()), [True, "", []])

    def test_memory_that_is_not_contiguous_is_refused(self):
        strided = memoryview(np.zeros((64, 2), dtype=np.uint8)[:, 0])
        number = self.connector.submit_batch_set([key(0)], [strided])
        self.assertFalse(self.wait_for(number)[0])
        self.stored([key(1)])

    def test_keys_and_buffers_that_do_not_match_are_refused(self):
        with self.assertRaisesRegex(ValueError, "2 keys and 0 buffers"):
            self.connector.submit_batch_get(keys(2), [])

    def test_closing_ends_what_runs_and_leaves_nothing(self):
        before = set(threading.enumerate())
        connector = self.connect_lmcache()
        buffers = [memoryview(payload(name)) for name in keys(64)]
        numbers = [connector.submit_batch_set(keys(64), buffers) for _ in range(8)]
        connector.close()
        completed = connector.drain_completions()
        self.assertEqual(sorted(each[0] for each in completed), numbers)
        late = connector.submit_batch_exists(keys(1))
        (number, good, error, _), = connector.drain_completions()
        self.assertEqual((number, good), (late, False))
        self.assertIn("closed", error)
        connector.close()
        # All of this connector's, and its client's are gone with the session.
        self.assertEqual([thread.name for thread in threading.enumerate()
                          if thread.name.startswith("kvstreamd-") and thread not in before], [])

    def test_counters_say_what_became_of_objects(self):
        names = keys(4)
        self.stored(names)
        self.stored(names)
        self.found(names + keys(1, seed="none"))
        self.loaded(names + keys(1, seed="none"))
        sums = self.connector.counters()
        self.assertEqual({name: sums[name] for name in (
            "stored_objects", "existing_objects", "stored_bytes", "looked_up_objects",
            "found_objects", "loaded_objects", "loaded_bytes", "missed_objects",
            "dropped_objects")},
            {"stored_objects": 4, "existing_objects": 4, "stored_bytes": 4 * CHUNK_BYTES,
             "looked_up_objects": 5, "found_objects": 4, "loaded_objects": 4,
             "loaded_bytes": 4 * CHUNK_BYTES, "missed_objects": 1, "dropped_objects": 0})
