"""Operations and their futures, without a daemon: events as the protocol allows them."""

import unittest

from kvstreamd import errors, protocol
from kvstreamd.errors import Code
from kvstreamd.operations import ReadOperation, StoreOperation


def read(*request_ids):
    """A read of these requests, whose cancels are ignored."""
    return ReadOperation(1, lambda _: None, 0.0, list(request_ids))


def store(chunks, durable=True):
    """A store of so many chunks."""
    return StoreOperation(1, lambda _: None, 0.0, chunks, durable)


def event(name, **fields):
    """An event's message."""
    return protocol.message(name)(**fields)


class ReadOperationTest(unittest.TestCase):
    """Nothing is valid that was not said to be."""

    def test_a_request_without_an_outcome_is_not_valid(self):
        for error in (None, errors.SessionLost("gone")):
            operation = read(5, 6)
            operation.on_event("request_done", event("RequestDone", request_id=5, leading_valid=2))
            operation.end(error)
            first, second = (future.result(0) for future in operation.requests)
            self.assertEqual((first.leading_valid, first.error), (2, None))
            self.assertEqual((second.leading_valid, second.other_valid), (0, ()))
            self.assertIsInstance(second.error, errors.Unavailable)

    def test_an_outcome_counts_once_and_of_known_requests_alone(self):
        operation = read(5)
        for leading, request_id in ((1, 5), (2, 5), (3, 7)):
            operation.on_event("request_done", event("RequestDone", request_id=request_id,
                                                     leading_valid=leading))
        operation.end(None)
        self.assertEqual([outcome.leading_valid for outcome in operation.result()], [1])

    def test_a_wait_that_is_over_says_that_the_operation_runs(self):
        operation = read(5)
        self.assertFalse(operation.wait(0))
        with self.assertRaises(errors.StillRunning) as raised:
            operation.result(0)
        self.assertNotIsInstance(raised.exception, errors.DeadlineExceeded)


class StoreOperationTest(unittest.TestCase):
    """What is released, kept and published."""

    def test_a_store_that_was_refused_releases_its_memory(self):
        operation = store(2)
        operation.end(errors.InvalidArgument("no"))
        self.assertEqual([chunk.code for chunk in operation.released.result(0)],
                         [Code.UNAVAILABLE] * 2)

    def test_what_is_not_published_is_not_durable(self):
        operation = store(2)
        operation.on_event("store_released", event("StoreReleased", all_released=True, results=[
            {"chunk_index": 0}, {"chunk_index": 1, "existed": True}, {"chunk_index": 9}]))
        self.assertEqual([chunk.code for chunk in operation.released.result(0)], [Code.OK] * 2)
        self.assertFalse(operation.durable.done())
        operation.on_event("store_durable", event("StoreDurable", results=[
            {"chunk_index": 0, "code": int(Code.UNAVAILABLE)}, {"chunk_index": 1}]))
        operation.end(errors.Unavailable("every write failed"))
        self.assertEqual([(chunk.code, chunk.existed) for chunk in operation.durable.result(0)],
                         [(Code.UNAVAILABLE, False), (Code.OK, True)])

    def test_a_session_lost_before_publication_has_published_nothing(self):
        operation = store(1)
        operation.on_event("store_released", event("StoreReleased", all_released=True,
                                                   results=[{"chunk_index": 0}]))
        operation.end(errors.SessionLost("gone"))
        self.assertEqual(operation.released.result(0)[0].code, Code.OK)
        self.assertEqual(operation.durable.result(0)[0].code, Code.UNAVAILABLE)


if __name__ == "__main__":
    unittest.main()
