#!/usr/bin/env python3
"""What the copy between the client's shared memory and LMCache's costs the plugin.

  bench/lmcache_copy.py KVSTREAMD KVSTREAMCTL [--objects 32] [--object-mib 16] [--rounds 5]

Runs in a Python that has kvstreamd. Objects are loaded from the daemon's memory, without a disk, so
that nothing hides the copy. Output: one JSON object a line.
"""

import argparse
import json
import pathlib
import select
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/python"),
                str(ROOT / "tests/lmcache")]
# pylint: disable=wrong-import-position
import real_node
from kvstreamd.lmcache import KVStreamConnector
from lmcache_case import keys


def run(connector, submit, names, buffers):
    """Seconds of a submission, and those of them that were copies."""
    before = connector.counters()["copy_seconds"]
    began = time.perf_counter()
    submit(names, [memoryview(buffer) for buffer in buffers])
    poller = select.poll()
    poller.register(connector.event_fd(), select.POLLIN)
    poller.poll()
    seconds = time.perf_counter() - began
    (_, good, error, _), = connector.drain_completions()
    assert good, error
    return seconds, connector.counters()["copy_seconds"] - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("daemon")
    parser.add_argument("ctl")
    parser.add_argument("--objects", type=int, default=32)
    parser.add_argument("--object-mib", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    total = args.objects * args.object_mib << 20
    names = keys(args.objects)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        node = real_node.Node(args.daemon, args.ctl, folder, cache="LRU",
                              config=f"pool {{ mib: {3 * total >> 20} }}")
        node.start()
        connector = KVStreamConnector(socket=node.socket, weights_fingerprint="bench")
        try:
            buffers = [np.full(args.object_mib << 20, 7, np.uint8) for _ in names]
            run(connector, connector.submit_batch_set, names, buffers)
            for number in range(args.rounds):
                seconds, copying = run(connector, connector.submit_batch_get, names, buffers)
                print(json.dumps({"bench": "lmcache_copy", "round": number, "bytes": total,
                                  "gb_s": round(total / seconds / 1e9, 2),
                                  "copy_gb_s": round(total / copying / 1e9, 2),
                                  "copy_share": round(copying / seconds, 3)}), flush=True)
        finally:
            connector.close()
            node.end()


if __name__ == "__main__":
    main()
