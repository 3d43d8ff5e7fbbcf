#!/usr/bin/env python3
"""Writes the binary inputs of tests/fuzz/corpus, which the fuzz targets begin with.

  tests/fuzz/make_corpus.py    run it again when a target reads its bytes in another way

Messages are written in protobuf text format here; protoc makes them binary. The text inputs
(config, trace) are written by hand.
"""

import os
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO = os.path.join(HERE, "..", "..", "proto")


def encode(message, text, file="kvstream"):
    return subprocess.run(
        ["protoc", f"-I{PROTO}", f"--encode=kvstream.v1.{message}",
         os.path.join(PROTO, "kvstream", "v1", file + ".proto")],
        input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def chunk_header(segments, payload_bytes, segment_bytes, prefix_hash_bytes, version=1):
    """A header block without its zeros at the end; the target makes its digests right."""
    key = struct.pack("<16sIII16sB", b"n" * 16, 0, 1, 2, b"s" * 16, prefix_hash_bytes)
    key += b"h" * prefix_hash_bytes
    head = struct.pack("<8sIIQQQ16s16s16sI", b"KVSTREAM", version, segments, 0, payload_bytes,
                       segment_bytes, b"c" * 16, b"n" * 16, b"k" * 16, len(key))
    return (head + key).ljust(256, b"\0") + struct.pack("<Q", 1) * segments


def chunk_headers():
    yield "one_segment", chunk_header(1, 5000, 8192, 16)
    yield "two_segments", chunk_header(2, 5000, 4096, 64)
    yield "most_segments", chunk_header(480, 480 * 4096, 4096, 16)
    yield "largest", chunk_header(3, 3 << 40, 1 << 40, 32)
    yield "too_large", chunk_header(1, 1 << 63, 1 << 63, 32)
    yield "too_many_segments", chunk_header(481, 481 * 4096, 4096, 16)
    yield "no_segment", chunk_header(0, 0, 4096, 16)
    yield "short_hash", chunk_header(1, 1, 4096, 15)
    yield "another_version", chunk_header(1, 1, 4096, 16, version=2)


def chunk_files():
    """One change (kind, place, mask), then a file (payload bytes - 1, segment, shard, hash)."""
    for name, change in (("truncated", (0, 8191, 0)), ("longer", (1, 4095, 0)),
                         ("header", (2, 300, 1)), ("version", (2, 8, 2)),
                         ("payload", (2, 4100, 128)),
                         ("padding", (2, 4096 + 5100, 255)), ("unchanged", (2, 5, 0))):
        yield name, struct.pack("<BHBHBBB", *change, 4999, 0, 1, 0) + b"payload" * 100
    yield "four_segments", struct.pack("<BHBHBBB", 3, 20000, 4, 16384, 0, 1, 48) + b"p" * 3000


def catalogs():
    """Entries of a frame."""
    kind = b"\0" + b"n" * 16 + struct.pack("<QQ", 5000, 4096)
    file = b"\1" + b"k" * 16 + b"c" * 16 + struct.pack("<QQIQQ", 7, 6, 0, 11, 22)
    gone = b"\2" + b"k" * 16
    used = b"\3" + struct.pack("<Q", 7)
    yield "every_entry", kind + file + gone + used
    yield "two_kinds", kind + b"\0" + b"m" * 16 + struct.pack("<QQ", 4096, 4096) + file
    yield "no_kind", file
    yield "no_shape", b"\0" + b"n" * 16 + struct.pack("<QQ", 1 << 63, 1)
    yield "cut_short", kind + file[:-1]
    yield "says_that_it_lives", b""
    yield "a_log", b"KVSCATLG" + struct.pack("<IIQ", 1, 0, 0) + b"w" * 24 + b"KVSF"


def layouts():
    """Allocation, block count, tensors (offset, stride, runs), then blocks, offset, bytes, most."""
    def number(n):
        if n < 32:
            return bytes([n])
        return b"\xd0" + struct.pack("<H", n) if n < 1 << 16 else b"\xf0" + struct.pack("<Q", n)

    def layout(allocation, blocks, tensors, chunk, offset, length):
        out = number(allocation) + number(blocks) + bytes([len(tensors)])
        for at, stride, runs in tensors:
            out += number(at) + number(stride) + bytes([len(runs)])
            out += b"".join(number(n) for run in runs for n in run)
        out += bytes([len(chunk) - 1]) + struct.pack(f"<{len(chunk)}I", *chunk)
        return out + struct.pack("<QHB", offset, length, 1)

    keys_and_values = [(0, 100, [(0, 100), (1000, 100)]), (2000, 100, [(0, 100), (1000, 100)])]
    yield "keys_and_values", layout(4000, 10, keys_and_values, [7, 2], 150, 500)
    yield "neighbours", layout(2064, 10, [(64, 200, [(0, 100), (100, 100)])], [3, 4, 1], 0, 600)
    yield "overlap", layout(100, 4, [(0, 10, [(0, 11)])], [0], 0, 1)
    yield "interleaved", layout(64, 8, [(0, 8, [(0, 3), (4, 4)]), (3, 8, [(0, 1)])], [7, 0], 2, 12)
    yield "one_block", layout(31, 1, [(0, 0, [(0, 31)])], [0, 0, 0], 30, 40)
    yield "large", layout(1 << 62, 3, [(1 << 40, 1 << 60, [(5, 1 << 33)])], [2, 1], 1 << 33, 9)
    yield "more_than_64_bits", layout(1 << 63, 1, [(0, 0, [(0, 1 << 63), (0, 1 << 63)])], [0], 0, 1)


READ_CHUNK = 'prefix_hash: "0123456789abcdef" group: %d shard: %d placement { %s }'
HOST = "host { buffer_id: %d offset: %d }"
DEVICE = "device { region_id: 1 blocks: [%s] }"


def sessions():
    """An id of one byte is the registered namespace's."""
    def step(chunks, more="mode: MODE_JOINT deadline_ms: 10", requests=1):
        text = "".join("requests { request_id: %d namespace_id: 'n' salt: 'a' %s }" %
                       (i, " ".join("chunks { %s }" % c for c in chunks)) for i in range(requests))
        return "read_step { operation_id: 1 %s %s }" % (more, text)

    host = [READ_CHUNK % (0, 1, HOST % (1, 0)), READ_CHUNK % (1, 0, HOST % (1, 16))]
    device = [READ_CHUNK % (0, 2, DEVICE % "1, 2"), READ_CHUNK % (1, 0, DEVICE % "0")]
    joint = "mode: MODE_JOINT step_id: 5 ranks: 4096 join_timeout_ms: 4 deadline_ms: 10000"
    store = "store { operation_id: 2 namespace_id: 'n' deadline_ms: 5 admission_ms: 9 %s }"
    for name, text in (
            ("read_host", step(host)), ("read_device", step(device)),
            ("read_joint", step(host, joint)),
            ("read_independent", step(host[:1], "mode: MODE_INDEPENDENT deadline_ms: 1")),
            ("read_overlap", step(host, requests=2)), ("read_overlapping_blocks", step(device * 2)),
            ("read_beyond", step([READ_CHUNK % (0, 0, HOST % (1, (1 << 64) - 8))])),
            ("read_nothing", "read_step { operation_id: 1 }"),
            ("store_host", store % " ".join("chunks { %s }" % c for c in host)),
            ("store_device", store % " ".join("chunks { %s }" % c for c in device)),
            ("store_twice", store % ("chunks { %s }" % host[0] * 2)),
            ("hello", "hello { token: '0123456789abcdef' protocol_version: 1 client_name: 'a' }"),
            ("prefetch", "prefetch { operation_id: 3 namespace_id: 'n' keep_ms: 1 }"),
            ("cancel", "cancel { operation_id: 1 }"), ("release", "release { lease_id: 1 }"),
            ("forward_began", "forward_began { step_id: 1 }"),
            ("scattered", "scattered { region_id: 1 part: 2 sequence: 3 }"),
            ("gathered", "gathered { region_id: 1 part: 2 sequence: 3 }"),
            ("heartbeat", "heartbeat { sequence: 1 }")):
        yield name, encode("ClientMessage", text)


NAMESPACE = ("namespace { model: 'm' weights_fingerprint: 'w' kv_dtype: 'bf16' layout: 'l' "
             "chunk_tokens: 256 %s }")


def unaries():
    def register(more, local=""):
        return b"\0" + encode("RegisterNamespaceRequest", NAMESPACE % more + local)

    def region(more):
        return b"\1" + encode("RegisterMemoryRequest", "session_id: 1 gpu_uuid: 'GPU-1' " + more)

    def lookup(more):
        return b"\2" + encode("LookupRequest", "namespace_id: 'n' " + more)

    handle = "cuda_ipc_handle: '%s' " % ("h" * 64)
    def looked_up(count):
        return f"prefix_hashes: '{'0123456789abcdef' * count}' prefix_hash_bytes: 16 "

    hashes = "prefix_hashes: ['0123456789abcdef', '0123456789abcdeg'] "
    yield "namespace", register("groups { chunk_bytes: 4096 shards: 2 }")
    yield "namespace_full", register(
        "groups { name: 'a' chunk_bytes: 1 shards: 4096 } groups { chunk_bytes: 9 "
        "replicated: true } "
        "strides: [1, 2] page_tokens: 16 tensor_parallel: 2 pipeline_parallel: 2 rope: 'r' "
        "context_parallel: 2 segment_bytes: 65536 quantization: 'q' extra { key: 'k' value: 'v' }",
        "local_shards { group: 0 shards: [7, 3, 7] } local_shards { group: 1 }")
    yield "namespace_segments", register("segment_bytes: 16384 groups { chunk_bytes: 7864321 }")
    yield "namespace_missing", b"\0"
    yield "region", region(handle + "allocation_bytes: 4096 block_count: 4 tensors { block_stride: "
                           "1024 runs { length: 512 } runs { offset: 512 length: 512 } }")
    yield "region_outside", region(handle + "allocation_bytes: 99 block_count: 4294967295 tensors "
                                   "{ block_stride: 18446744073709551615 runs { length: 1 } }")
    yield "region_vmm", region("handoff_memory_id: 1 allocation_bytes: 64 block_count: 1 "
                               "tensors { runs { length: 64 } } tensors { runs { length: 64 } }")
    yield "landing", region(handle + "allocation_bytes: 16384 landing_parts: 4")
    yield "landing_small", region(handle + "allocation_bytes: 4096 landing_parts: 64")
    yield "lookup", lookup(
        looked_up(2) + "mode: MODE_PER_KEY lease_ms: 20000 session_id: 1 salt: 's'")
    yield "lookup_group", lookup(looked_up(10) + "groups: [1]")
    yield "lookup_too_many", lookup(looked_up(10))
    yield "drain", b"\3" + encode("DrainRequest", "timeout_ms: 3600000", "admin")
    yield "watch", b"\4" + encode("WatchRequest", "interval_ms: 100", "admin")
    yield "watch_default", b"\4"
    yield "evict", b"\5" + encode(
        "EvictRequest", "namespace_id: '0123456789abcdef' older_than_ms: 1001 salt: 's' " + hashes,
        "admin")
    yield "tier_state", b"\6" + encode("SetTierStateRequest", "state: TIER_STATE_OUT", "admin")


def handoffs():
    """Patience, then steps: answers of drops, descriptors, request id, kind and its number."""
    def steps(*all_of_them, patient=1):
        return bytes([patient]) + b"".join(bytes([7, fds, 1]) + rest for fds, rest in all_of_them)

    def create(size):
        return 15, b"\0" + struct.pack("<H", size)

    def attach(fds, size=0):
        return fds, b"\1" + struct.pack("<H", size)

    def drop(buffer_id):
        return 15, bytes([2, buffer_id])

    def raw(text, fds=15):
        content = encode("HandoffRequest", text, "handoff")
        return fds, bytes([4, len(content)]) + content

    device = (0, b"\3" + struct.pack("<H", 4096))
    yield "create", steps(create(1), create(4096), create(8192), create(1))
    yield "create_too_much", steps(create(20480), create(1), create(20481), create(0))
    yield "attach", steps(attach(0), attach(0, 5000), attach(0, 5001))
    yield "attach_refused", steps(attach(1), attach(2), attach(3), attach(4), attach(5), attach(15))
    yield "many_descriptors", steps(attach(6), attach(0))[:-5] + b"\x27" + bytes(8)
    yield "drop", steps(create(1), drop(1), drop(1), drop(5), create(4096))
    yield "device_memory", steps(device, device, (15, device[1]))
    yield "impatient", steps(create(1), drop(1), device, patient=0)
    yield "no_request", steps(raw("request_id: 1"), create(1))
    yield "raw", steps(raw("request_id: 9 attach_device_memory { gpu_uuid: 'GPU' }", 0),
                       raw("create_host_buffer { bytes: 18446744073709551615 }"),
                       raw("attach_host_buffer { bytes: 18446744073709551615 }", 0))
    yield "malformed", steps(create(1), (15, b"\4\1\xff"))
    yield "empty_packet", steps(create(1), (15, b"\4\0"))
    yield "longest_packet", steps((15, b"\5\0"), create(1))
    yield "too_long_packet", steps((0, b"\5\x0f" + b"x" * 15))


def main():
    for target, inputs in (("chunk_header", chunk_headers), ("chunk_file", chunk_files),
                           ("catalog", catalogs), ("layout", layouts), ("session", sessions),
                           ("unary", unaries),
                           ("handoff", handoffs)):
        folder = os.path.join(HERE, "corpus", target)
        os.makedirs(folder, exist_ok=True)
        for name, content in inputs():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)


if __name__ == "__main__":
    main()
