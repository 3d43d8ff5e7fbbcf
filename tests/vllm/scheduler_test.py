"""The connector's scheduler against a real daemon; the test is the engine and its worker."""

import types
from concurrent.futures import Future
from unittest import mock

from daemon_case import DaemonCase, description, prefix_hashes, real_node
from kvstreamd.client import Client
from kvstreamd.vllm import lookups
from kvstreamd.vllm.compat import LocalCache, Scheduled
from kvstreamd.vllm.keys import Shape
from kvstreamd.vllm.lookups import Lookup
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.scheduler import Scheduler

BLOCK, CHUNK = 16, 64


class Blocks:
    """As vLLM's KVCacheBlocks."""

    def __init__(self, numbers):
        self._numbers = numbers

    def get_block_ids(self):
        return (self._numbers,)


def request_of(name, hashes, tokens=None):
    """As vLLM's Request, as far as it is looked at."""
    return types.SimpleNamespace(
        request_id=name, block_hashes=list(hashes), num_tokens=tokens or len(hashes) * BLOCK,
        lora_request=None, cache_salt=None, skip_reading_prefix_cache=False)


class SchedulerTest(DaemonCase):
    """One engine of one rank."""

    def setUp(self):
        super().setUp()
        self.namespace = description(chunk_tokens=CHUNK, page_tokens=BLOCK)
        self.registered = self.client.register_namespace(self.namespace)
        self.scheduler = self.make_scheduler()

    def make_scheduler(self, loads=True, stores=True, namespace=True, **options):
        scheduler = Scheduler(
            Options.parse({"socket": self.node.socket, "lookup_timeout_ms": 60_000,
                           "lease_ms": 120_000, **options}),
            "test", Shape(BLOCK, BLOCK, CHUNK), 1, loads=loads, stores=stores)
        self.addCleanup(scheduler.close)
        if namespace:
            scheduler.use(self.namespace)
        return scheduler

    def keys(self, hashes):
        return hashes[3::4]

    def matched(self, request, local=0, scheduler=None):
        """Asks until there is an answer, as vLLM does."""
        scheduler = scheduler or self.scheduler
        answers = []
        real_node.wait(lambda: answers.append(scheduler.matched_tokens(request, local))
                       or answers[-1][0] is not None, "the lookup is answered")
        return answers[-1]

    def test_a_lookup_begins_with_the_request_and_is_answered_later(self):
        hashes = prefix_hashes(16)
        self.keep(self.registered, self.keys(hashes)[:3])
        request = request_of("r", hashes)
        self.scheduler.on_new_request(request)
        self.assertEqual(self.matched(request), (3 * CHUNK, True))
        # Asking again changes nothing, and asks the daemon nothing.
        asked = self.client.status().operations.lookups
        self.assertEqual(self.matched(request), (3 * CHUNK, True))
        self.assertEqual(self.client.status().operations.lookups, asked)

    def test_a_whole_hit_leaves_one_token(self):
        hashes = prefix_hashes(8)
        self.keep(self.registered, self.keys(hashes))
        self.assertEqual(self.matched(request_of("r", hashes)), (2 * CHUNK - 1, True))

    def test_what_the_engine_has_is_not_counted(self):
        hashes = prefix_hashes(16)
        self.keep(self.registered, self.keys(hashes)[:2])
        request = request_of("r", hashes)
        self.assertEqual(self.matched(request, local=5 * BLOCK), (3 * BLOCK, True))
        self.assertEqual(self.matched(request, local=8 * BLOCK), (0, False))

    def test_an_answer_that_is_taken_too_late_is_asked_for_once_more(self):
        hashes = prefix_hashes(8)
        self.keep(self.registered, self.keys(hashes))
        request = request_of("r", hashes)
        self.scheduler.on_new_request(request)
        answer = self.matched(request)
        self.assertEqual(answer, (2 * CHUNK - 1, True))
        asked = self.client.status().operations.lookups
        with mock.patch.object(Lookup, "is_stale", return_value=True):
            self.scheduler.matched_tokens(request, 0)
        self.assertEqual(self.matched(request), answer)
        self.assertEqual(self.client.status().operations.lookups, asked + 1)
        # One that is too late twice in a row leaves the request to run without.
        with mock.patch.object(Lookup, "is_stale", return_value=True):
            self.assertEqual(self.matched(request), (0, False))
        self.assertEqual(self.client.status().operations.lookups, asked + 2)

    def test_a_lookup_is_awaited_however_short_its_lease_is(self):
        hashes = prefix_hashes(8)
        self.keep(self.registered, self.keys(hashes))
        request = request_of("r", hashes)
        answer = Future()
        with mock.patch.object(Client, "start_lookup", return_value=answer) as start:
            self.scheduler.on_new_request(request)
            with mock.patch.object(Lookup, "is_stale", return_value=True):
                self.assertEqual(self.scheduler.matched_tokens(request, 0), (None, False))
                self.assertEqual(self.scheduler.matched_tokens(request, 0), (None, False))
        self.assertEqual(start.call_count, 1)
        answer.set_exception(TimeoutError("no answer"))
        self.assertEqual(self.scheduler.matched_tokens(request, 0), (0, False))

    def test_a_lookup_takes_until_its_answer_and_not_until_the_engine_asks(self):
        hashes = prefix_hashes(8)
        request = request_of("r", hashes)
        answer = Future()
        now = [10.0]
        with (mock.patch.object(Client, "start_lookup", return_value=answer),
              mock.patch.object(lookups, "time", types.SimpleNamespace(monotonic=lambda: now[0]))):
            self.scheduler.on_new_request(request)
            now[0] = 12.0
            answer.set_exception(TimeoutError("no answer"))
            now[0] = 15.0
            self.scheduler.matched_tokens(request, 0)
        self.assertEqual(self.scheduler.take_stats()["lookup_wait_seconds"], 2.0)

    def test_a_load_names_the_chunks_and_spares_local_blocks(self):
        hashes = prefix_hashes(16)
        self.keep(self.registered, self.keys(hashes)[:3])
        request = request_of("r", hashes)
        tokens, _ = self.matched(request, local=5 * BLOCK)
        self.scheduler.allocated(request, Blocks(list(range(100, 116))), tokens)
        self.scheduler.allocated(request, Blocks(list(range(100, 116))), 0)
        plan = self.scheduler.plan([], set())
        load, = plan.loads
        self.assertEqual([chunk.key for chunk in load.chunks], self.keys(hashes)[1:3])
        self.assertEqual([chunk.blocks for chunk in load.chunks],
                         [list(range(104, 108)), list(range(108, 112))])
        self.assertEqual(load.skip_blocks, 1)
        self.assertNotEqual(load.lease_id, 0)
        self.assertEqual(plan.namespace, self.namespace)
        self.assertEqual(self.scheduler.plan([], set()).loads, [])

    def test_stores_are_whole_chunks_that_are_not_there(self):
        hashes = prefix_hashes(16)
        self.keep(self.registered, self.keys(hashes)[:1])
        request = request_of("r", hashes)
        self.matched(request)
        blocks = list(range(16))
        plan = self.scheduler.plan([(Scheduled("r", blocks, True, 0), 3 * CHUNK - 1)], set())
        store, = plan.stores
        self.assertEqual([chunk.key for chunk in store.chunks], [self.keys(hashes)[1]])
        self.assertEqual(store.after, self.keys(hashes)[0])
        plan = self.scheduler.plan([(Scheduled("r", [], False, 3 * CHUNK - 1), 1)], set())
        self.assertEqual([chunk.blocks for chunk in plan.stores[0].chunks], [[8, 9, 10, 11]])
        self.assertEqual(self.scheduler.plan([(Scheduled("r", [], False, 3 * CHUNK), 1)],
                                             set()).stores, [])

    def test_blocks_are_held_until_every_rank_has_released_them(self):
        hashes = prefix_hashes(8)
        self.scheduler.on_new_request(request_of("r", hashes))
        plan = self.scheduler.plan([(Scheduled("r", list(range(8)), True, 0), 2 * CHUNK)], set())
        self.assertTrue(self.scheduler.finished("r"))
        self.assertEqual(self.scheduler.plan([], set()).held, {"r"})
        self.scheduler.released({plan.stores[0].job_id: 1})
        self.scheduler.on_new_request(request_of("r", hashes))
        self.assertFalse(self.scheduler.finished("r"))

    def test_a_preempted_request_begins_anew(self):
        hashes = prefix_hashes(8)
        request = request_of("r", hashes)
        self.scheduler.on_new_request(request)
        self.scheduler.plan([(Scheduled("r", list(range(8)), True, 0), CHUNK)], set())
        plan = self.scheduler.plan([], {"r"})
        self.assertEqual(plan.preempted, {"r"})
        self.keep(self.registered, self.keys(hashes)[:1])
        self.assertEqual(self.matched(request), (CHUNK, True))
        plan = self.scheduler.plan(
            [(Scheduled("r", list(range(50, 58)), True, CHUNK), CHUNK)], set())
        self.assertEqual(plan.stores[0].chunks[0].blocks, [54, 55, 56, 57])

    def test_a_load_that_fails_is_tried_once_more_and_stored_anew(self):
        hashes = prefix_hashes(12)
        self.keep(self.registered, self.keys(hashes)[:2])
        request = request_of("r", hashes)
        for _ in range(2):
            tokens, _ = self.matched(request)
            self.assertEqual(tokens, 2 * CHUNK)
            self.scheduler.allocated(request, Blocks(list(range(12))), tokens)
            self.scheduler.plan([], set())
            self.scheduler.load_failed({"r": 1})
        self.assertEqual(self.matched(request), (0, False))
        plan = self.scheduler.plan([(Scheduled("r", list(range(12)), True, 0), 3 * CHUNK)], set())
        self.assertEqual([chunk.key for chunk in plan.stores[0].chunks], self.keys(hashes)[1:])

    def test_what_a_queued_request_will_load_is_asked_for_ahead(self):
        hashes = prefix_hashes(16)
        self.keep(self.registered, self.keys(hashes))
        # The engine has the first chunk.
        self.scheduler.bind(types.SimpleNamespace(has=lambda block: block == hashes[3]))
        request = request_of("r", hashes)
        self.scheduler.on_new_request(request)
        asked = real_node.wait(
            lambda: self.scheduler.take_stats().get("prefetched_chunks", 0), "chunks are asked for")
        self.assertEqual(asked, 3)

    def found_again(self, hashes):
        """Waits until what the daemon has is found after a loss: tokens."""
        def found():
            again = request_of("again", hashes)
            tokens, _ = self.matched(again)
            self.scheduler.finished("again")
            return tokens
        return real_node.wait(found, "the daemon is found again")

    def test_without_a_daemon_nothing_is_found_and_nothing_waits(self):
        hashes = prefix_hashes(8)
        self.keep(self.registered, self.keys(hashes))
        self.node.kill()
        request = request_of("r", hashes)
        self.scheduler.on_new_request(request)
        real_node.wait(lambda: self.matched(request) == (0, False), "the loss is noticed")
        self.node.start()

        # It comes back by itself, and so does what it has.
        self.found_again(hashes)
        self.assertEqual(self.scheduler.take_stats()["connections_lost"], 1)

    def test_whatever_the_client_raises_is_a_miss(self):
        # As gRPC does of a channel that another thread closes.
        request = request_of("r", prefix_hashes(8))
        with mock.patch.object(Client, "start_lookup", side_effect=ValueError("closed channel")):
            self.scheduler.on_new_request(request)
            self.assertEqual(self.scheduler.matched_tokens(request, 0), (0, False))
        self.scheduler.finished("r")

    def test_whatever_the_client_raises_it_is_connected_again(self):
        failures = [ValueError("closed channel"), RuntimeError("another thread")]
        reconnect = Client.reconnect

        def fail_first(client):
            if failures:
                raise failures.pop()
            reconnect(client)
        hashes = prefix_hashes(8)
        self.keep(self.registered, self.keys(hashes))
        with mock.patch.object(Client, "reconnect", fail_first):
            self.node.kill()
            self.node.start()
            self.assertTrue(self.found_again(hashes))
        self.assertEqual(failures, [])

    def test_hashes_of_another_granularity_are_not_used(self):
        request = request_of("r", prefix_hashes(8), tokens=8 * BLOCK * 2)
        with self.assertLogs("vllm.kvstreamd", "ERROR"):
            self.scheduler.on_new_request(request)
        self.assertEqual(self.scheduler.matched_tokens(request, 0), (0, False))
        self.assertEqual(self.scheduler.plan(
            [(Scheduled("r", list(range(16)), True, 0), 4 * CHUNK)], set()).stores, [])

    def test_a_reset_while_requests_have_blocks_keeps_nothing_until_a_whole_one(self):
        pool = types.SimpleNamespace(num_gpu_blocks=10, get_num_free_blocks=lambda: 5,
                                     get_cached_block=lambda *_: None)
        self.scheduler.bind(LocalCache(pool))
        step = [(Scheduled("r", list(range(4)), True, 0), CHUNK)]
        for free, complete in ((5, False), (9, True)):
            pool.get_num_free_blocks = lambda free=free: free
            self.assertEqual(self.scheduler.reset(), complete)
            # What it computes may go on from the engine's own KV of before.
            self.scheduler.on_new_request(request_of("r", prefix_hashes(4)))
            self.assertEqual(bool(self.scheduler.plan(step, set()).stores), complete)
            self.scheduler.finished("r")

    def test_roles_are_kept(self):
        hashes = prefix_hashes(8)
        self.keep(self.registered, self.keys(hashes))
        for loads, expected in ((False, (0, False)), (True, (2 * CHUNK - 1, True))):
            scheduler = self.make_scheduler(loads=loads, stores=not loads)
            request = request_of("r", hashes)
            scheduler.on_new_request(request)
            self.assertEqual(self.matched(request, scheduler=scheduler), expected)
            plan = scheduler.plan([(Scheduled("r", list(range(8)), True, 0), 2 * CHUNK)], set())
            self.assertEqual(bool(plan.stores), not loads)

    def test_leases_end_with_their_requests(self):
        hashes = prefix_hashes(8)
        self.keep(self.registered, self.keys(hashes))
        for number in range(3):
            request = request_of(f"r{number}", hashes)
            self.scheduler.on_new_request(request)
            tokens, _ = self.matched(request)
            if number:
                self.scheduler.allocated(request, Blocks(list(range(8))), tokens)
        self.assertGreater(self.client.status().sessions.leases, 0)
        for number in range(3):
            self.scheduler.finished(f"r{number}")
        real_node.wait(lambda: self.client.status().sessions.leases == 0, "no lease is left")

