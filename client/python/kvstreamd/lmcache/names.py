"""What LMCache's key strings say: whose object it is, which of its chunks, and for which tenant.

The server's keys are

    model @ kv_rank, 8 hex digits @ object group, hex @ chunk hash, hex [@ cache salt]

without the spaces; LMCache keeps "@" out of models and salts. What is not exactly of that form has
no name: it is neither kept nor found.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvstreamd.identity import fingerprint_of

# Of the daemon's keys, bytes.
_HASH_BYTES = range(16, 65)
_KEY = re.compile(r"(?P<model>[^@]+)@(?P<kv_rank>[0-9a-f]{8,})@(?P<group>0|[1-9a-f][0-9a-f]*)"
                  r"@(?P<hash>(?:[0-9a-f]{2})+)(?:@(?P<salt>[^@]+))?", re.DOTALL)


class Space(NamedTuple):
    """Whose objects: one model's, rank's and group's. They have one size, as a rule."""

    model: str
    # What else tells two apart, as names and values, in a fixed order.
    parts: tuple[tuple[str, str], ...]


class ObjectName(NamedTuple):
    """One object."""

    space: Space
    # 16 .. 64 bytes.
    prefix_hash: bytes
    # LMCache's cache salt; empty for none.
    salt: str


def prefix_hash_of(chunk_hash: bytes) -> bytes:
    """The daemon's key for a chunk hash of any length."""
    if len(chunk_hash) in _HASH_BYTES:
        return chunk_hash
    return fingerprint_of(chunk_hash=chunk_hash)


def parse(key: str) -> ObjectName | None:
    """The object that a key string of LMCache's server names; None for what is none."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    space = Space(match["model"], (("keys", "server"), ("kv_rank", match["kv_rank"]),
                                   ("object_group", match["group"])))
    return ObjectName(space, prefix_hash_of(bytes.fromhex(match["hash"])), match["salt"] or "")
