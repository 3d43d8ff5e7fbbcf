#!/usr/bin/env python3
"""What chunks cost beside their bytes: publishing, looking up, and starting again on many.

A daemon with one tier, on a directory of its own (--dir, an ext4 or XFS), and one client. Small
chunks of 4 KiB stand in for chunks: a file, its header, two names and an entry of the index are the
same whatever a chunk's size. For each number of chunks: how many are published in a second, up to
there from the number before; lookups of one key, of 256 and of 65,536, which are whole prompts; the
index's memory for each chunk; a clean stop and a start on its index snapshot; a start without one,
which finds the chunks by a walk. --fsync N does the publishing once more for the first N chunks
with each file flushed. Times of starts are from the beginning of the process: until its socket
answers, until the first hit is read and verified, until the index has all files again, and until
the folders have been looked through for others. With root the page cache is dropped before each
start. Output: one JSON object a line.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from bench_daemon import BUILD, Daemon, run

PATIENCE_S = 600


def client(args, socket, mode, *options):
    return json.loads(run(str(args.build / "bench/kvstream-metadata-bench"), mode, "--socket",
                          str(socket), *map(str, options)))


def status(args, socket):
    return json.loads(run(str(args.build / "client/kvstreamctl"), "--socket", str(socket), "status",
                          "--json"))


def emit(**row):
    print(json.dumps({"bench": "metadata", **row}), flush=True)


def drop_caches():
    """Whether it could."""
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    except OSError:
        return False
    return True


def start(stack, args, folder, fsync=False):
    # A small pool: what is published leaves it.
    return Daemon(stack, args.build, folder, [("only", folder / "tier")],
                  "write_backlog_mib: 1024", "pool { mib: 256 } "
                  f"writes {{ fsync: {str(fsync).lower()} }}")


def publish(args, folder, counts, fsync):
    done = 0
    with contextlib.ExitStack() as stack:
        daemon = start(stack, args, folder, fsync)
        for count in counts:
            took = client(args, daemon.socket, "publish", "--first", done, "--chunks", count)
            emit(case="publish", chunks=count, fsync=fsync,
                 per_s=round(took["published"] / took["seconds"]))
            done = count
            if fsync:
                continue
            for keys, times in ((1, 5000), (256, 500), (min(65536, count), 50)):
                seen = client(args, daemon.socket, "lookup", "--chunks", count, "--keys", keys,
                              "--times", times)
                emit(case="lookup", chunks=count, keys=keys, ms_p50=seen["ms_p50"],
                     ms_p99=seen["ms_p99"], keys_per_s=seen["keys_per_s"])
            index = status(args, daemon.socket)["index"]
            emit(case="memory", chunks=count,
                 bytes_per_chunk=round(int(index["bytes"]) / int(index["chunks"]), 1))


def restart(args, folder, chunks, snapshot):
    if not snapshot:
        shutil.rmtree(folder / "tier/v1/index")
    cold = drop_caches()
    with contextlib.ExitStack() as stack:
        began = time.time()
        # It waits for the socket by looking for it.
        first = subprocess.Popen(
            [str(args.build / "bench/kvstream-metadata-bench"), "first", "--socket",
             str(folder / "kvstreamd.sock"), "--chunks", str(chunks)],
            stdout=subprocess.PIPE, text=True)
        daemon = start(stack, args, folder)
        ready = time.time() - began
        indexed = None
        while (tier := status(args, daemon.socket)["tiers"][0])["restoring"]:
            if indexed is None and int(tier["chunk_files"]) == chunks:
                indexed = time.time() - began
            if time.time() > began + PATIENCE_S:
                sys.exit("metadata: the daemon does not find its files")
            time.sleep(0.02)
        through = time.time() - began
        served = json.loads(first.communicate(timeout=PATIENCE_S)[0])["served_at"] - began
        found = int(status(args, daemon.socket)["tiers"][0]["chunk_files"])
    if found != chunks:
        sys.exit(f"metadata: {found} of {chunks} chunks were found")
    emit(case="start", chunks=chunks, snapshot=snapshot, cold=cold, ready_s=round(ready, 2),
         first_hit_s=round(served, 2), indexed_s=round(indexed or through, 2),
         through_s=round(through, 2))


def main():
    parser = argparse.ArgumentParser(prog="kvstream-bench metadata", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=BUILD, help="build folder")
    parser.add_argument("--dir", type=pathlib.Path, required=True,
                        help="where its files go, some 9 KiB for each chunk; emptied afterwards")
    parser.add_argument("--chunks", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--fsync", type=int, default=10_000, metavar="N",
                        help="chunks that are published with each file flushed; 0: none")
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvstream-metadata-", dir=args.dir))
    try:
        if args.fsync:
            (folder / "tier").mkdir()
            publish(args, folder, [args.fsync], fsync=True)
            shutil.rmtree(folder / "tier")
        (folder / "tier").mkdir()
        publish(args, folder, sorted(args.chunks), fsync=False)
        for snapshot in (True, False):
            restart(args, folder, max(args.chunks), snapshot)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
