#!/usr/bin/env python3
"""What a lookup of a long prompt costs vLLM's scheduler, in the connector.

  bench/vllm_lookup.py KVSTREAMD KVSTREAMCTL [--tokens 100000] [--rounds 200]

Runs in a Python that has kvstreamd; needs no vLLM. Each round is a new request whose prompt the
daemon has whole: the times of all of the connector's calls in the scheduler's thread, from its
arrival to the answer, are added up. The time that passes until the answer is there is the other
line.
"""

import argparse
import hashlib
import pathlib
import statistics
import sys
import tempfile
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/support"))
# pylint: disable=wrong-import-position
import kvstreamd
import real_node
from kvstreamd.vllm.keys import Shape
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.scheduler import Scheduler

BLOCK, CHUNK, CHUNK_BYTES = 16, 256, 4096
PATIENCE_MS = 60_000


def block_hashes(count):
    """Chained, as vLLM's."""
    hashes = [b"the first"]
    for number in range(count):
        hashes.append(hashlib.sha256(hashes[-1] + number.to_bytes(4, "little")).digest())
    return hashes[1:]


def store_all(socket, description, keys):
    """Puts chunks of these keys into the daemon."""
    with kvstreamd.Client(socket) as client:
        namespace = client.register_namespace(description)
        buffer = client.create_host_buffer(len(keys) * CHUNK_BYTES)
        client.store(namespace, [kvstreamd.ChunkAt(key, buffer.at(number * CHUNK_BYTES))
                                 for number, key in enumerate(keys)],
                     admission_ms=PATIENCE_MS, deadline_ms=PATIENCE_MS).result()


def one_round(scheduler, request):
    """Seconds in the connector's calls, and seconds until the answer."""
    began = time.perf_counter()
    scheduler.on_new_request(request)
    inside = time.perf_counter() - began
    while True:
        called = time.perf_counter()
        tokens, _ = scheduler.matched_tokens(request, 0)
        inside += time.perf_counter() - called
        if tokens is not None:
            return inside, time.perf_counter() - began, tokens
        time.sleep(0.0002)


def measure(socket, arguments):
    """All rounds' times."""
    shape = Shape(BLOCK, BLOCK, CHUNK)
    hashes = block_hashes(arguments.tokens // BLOCK)
    description = kvstreamd.NamespaceDescription(
        model="bench", weights_fingerprint=b"bench", kv_dtype="bfloat16", layout="bench",
        chunk_tokens=CHUNK, page_tokens=BLOCK, groups=[kvstreamd.Group(chunk_bytes=CHUNK_BYTES)])
    store_all(socket, description, shape.keys(hashes))
    scheduler = Scheduler(Options.parse({"socket": socket}), "bench", shape, 1, loads=True,
                          stores=True)
    scheduler.use(description)
    rounds = []
    for number in range(arguments.rounds):
        request = types.SimpleNamespace(
            request_id=str(number), block_hashes=hashes, num_tokens=len(hashes) * BLOCK + 1,
            lora_request=None, cache_salt=None, skip_reading_prefix_cache=False)
        inside, answered, tokens = one_round(scheduler, request)
        assert tokens == len(hashes) * BLOCK // CHUNK * CHUNK, tokens
        scheduler.finished(request.request_id)
        rounds.append((inside, answered))
    scheduler.close()
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("daemon")
    parser.add_argument("ctl")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        node = real_node.Node(arguments.daemon, arguments.ctl, folder)
        node.start()
        try:
            rounds = measure(node.socket, arguments)
        finally:
            node.end()
    for name, times in zip(("in the scheduler's thread", "until the answer"), zip(*rounds)):
        cuts = statistics.quantiles(times, n=100)
        print(f"{name}: p50 {1000 * cuts[49]:.2f} ms, p90 {1000 * cuts[89]:.2f} ms, "
              f"p99 {1000 * cuts[98]:.2f} ms")


if __name__ == "__main__":
    main()
