"""What the scheduler's connector tells the workers' each step, and what they answer.

Plain data; it crosses processes by pickle. Blocks are numbers of the engine's blocks, chunks carry
as many as make a chunk.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from kvstreamd.identity import NamespaceDescription


class ChunkBlocks(NamedTuple):
    """A chunk's key and its place in the engine."""

    key: bytes
    blocks: list[int]


@dataclasses.dataclass
class LoadJob:
    """Chunks to load for one request, in prefix order. The first `skip_blocks` blocks of the first
    are not to be written."""

    request_id: str
    salt: bytes
    lease_id: int
    chunks: list[ChunkBlocks]
    skip_blocks: int


@dataclasses.dataclass
class StoreJob:
    """Chunks of one request that this step completes. `after` is the key before the first, empty
    where it begins the prefix."""

    job_id: int
    request_id: str
    salt: bytes
    after: bytes
    chunks: list[ChunkBlocks]


@dataclasses.dataclass
class StepPlan:
    """One step's work."""

    loads: list[LoadJob] = dataclasses.field(default_factory=list)
    stores: list[StoreJob] = dataclasses.field(default_factory=list)
    # Finished requests whose blocks the engine holds until their stores are released.
    held: set[str] = dataclasses.field(default_factory=set)
    # Requests whose blocks others may get in this step.
    preempted: set[str] = dataclasses.field(default_factory=set)
    # The namespace; with the first plan that has work.
    namespace: NamespaceDescription | None = None


@dataclasses.dataclass
class WorkerShape:
    """What only a worker knows of the KV's bytes. All ranks must agree in it."""

    # Bytes of a block, of all layers of this rank.
    block_bytes: int
    # Blocks in the engine.
    block_count: int
    # Type of the elements, and how a block's bytes are laid out, as text.
    kv_dtype: str
    layout: str
