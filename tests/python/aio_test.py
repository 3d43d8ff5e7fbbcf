"""AsyncClient against a real daemon."""

import asyncio
import unittest

import kvstreamd
from daemon_case import CHUNK_BYTES, PATIENCE_S, DaemonCase, chunk_bytes_of, description
from daemon_case import prefix_hashes
from kvstreamd import aio, errors


class AsyncClientTest(DaemonCase):
    """What Client does, awaited."""

    def run_with(self, body):
        """Runs `body(client)`."""
        async def run():
            async with await aio.AsyncClient.connect(
                    self.node.socket, connect_timeout_s=PATIENCE_S, call_timeout_s=PATIENCE_S,
                    deadline_ms=1000 * PATIENCE_S) as client:
                return await asyncio.wait_for(body(client), PATIENCE_S)
        return asyncio.run(run())

    def test_what_is_stored_is_found_and_read_back(self):
        hashes = prefix_hashes(4)

        async def body(client):
            namespace = await client.register_namespace(description())
            buffer = await client.create_host_buffer(8 * CHUNK_BYTES)
            for number, each in enumerate(hashes):
                self.bytes_at(buffer, number)[:] = chunk_bytes_of(each)
            store = client.store(namespace, self.chunks(buffer, hashes), durable=True)
            self.assertEqual([chunk.code for chunk in await store.released()], [0] * 4)
            await store.durable()
            await store.result()
            found = await client.lookup(namespace, hashes, lease_ms=1000)
            self.assertEqual(found.leading_run, 4)
            read = client.read_step([kvstreamd.ReadRequest(
                namespace=namespace, request_id=3, lease_id=found.lease_id,
                chunks=self.chunks(buffer, hashes, first=4))])
            outcome = await read.request(0)
            self.check_bytes(buffer, hashes, outcome, first=4)
            self.assertEqual(await read.result(), [outcome])
            self.assertEqual(await read.result(0), [outcome])
            self.assertIsNone(await read.ended())
            client.release(found.lease_id)
            client.forward_began(1)
            await client.drop_host_buffer(buffer)
            self.assertEqual((await client.status()).boot_id, client.client.boot_id)
            return outcome.leading_valid
        self.assertEqual(self.run_with(body), 4)

    def test_many_lookups_run_at_once(self):
        async def body(client):
            namespace = await client.register_namespace(description())
            found = await asyncio.gather(*(client.lookup(namespace, prefix_hashes(3, str(i)))
                                           for i in range(50)))
            return {each.leading_run for each in found}
        self.assertEqual(self.run_with(body), {0})

    def test_a_cancelled_task_leaves_its_operation_running(self):
        hashes = prefix_hashes(1)
        self.keep(self.client.register_namespace(description()), hashes)

        async def body(client):
            namespace = await client.register_namespace(description())
            buffer = await client.create_host_buffer(CHUNK_BYTES)
            read = client.read_step(
                [kvstreamd.ReadRequest(namespace=namespace, request_id=1,
                                       chunks=self.chunks(buffer, hashes))],
                step_id=5, ranks=2, join_timeout_ms=1000 * PATIENCE_S)
            task = asyncio.create_task(read.result())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            with self.assertRaises(errors.StillRunning):
                await read.result(0.01)
            for wait in (read.ended, lambda timeout_s: read.request(0, timeout_s)):
                with self.assertRaises(errors.StillRunning):
                    await wait(0)
            self.assertFalse(read.done())
            read.cancel()
            return await read.ended()
        self.assertIsInstance(self.run_with(body), errors.Cancelled)

    def test_errors_are_the_clients(self):
        async def body(client):
            namespace = await client.register_namespace(description())
            buffer = await client.create_host_buffer(CHUNK_BYTES)
            read = client.read_step([kvstreamd.ReadRequest(
                namespace=namespace, request_id=1, chunks=self.chunks(buffer, prefix_hashes(1)))])
            with self.assertRaises(errors.NotFound):
                await read.result()
            with self.assertRaises(errors.InvalidArgument):
                await client.lookup(namespace, [b"short"])
            store = client.store(namespace, self.chunks(buffer, prefix_hashes(1)))
            with self.assertRaises(errors.FailedPrecondition):
                await store.durable()
            await store.released()
            await asyncio.to_thread(self.node.kill)
            await asyncio.to_thread(self.node.start)
            self.assertTrue(await client.reconnect())
            with self.assertRaises(errors.NotFound):
                await aio.AsyncClient.connect(self.node.socket + ".none")
        self.run_with(body)


if __name__ == "__main__":
    unittest.main()
