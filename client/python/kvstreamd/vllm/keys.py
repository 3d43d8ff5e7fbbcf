"""Which chunks a request has, under which keys, and which of them to load or to store. Pure.

vLLM's block hashes are chained: the hash of a block names all tokens up to its end, with what else
tells their KV apart (adapter, images, cache salt). So a chunk's key is the hash of its last block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Shape:
    """Tokens of the units that a prefix is divided into; each a multiple of the one before."""

    hash_tokens: int
    block_tokens: int
    chunk_tokens: int

    @property
    def chunk_blocks(self) -> int:
        """Blocks in a chunk."""
        return self.chunk_tokens // self.block_tokens

    def chunk_count(self, block_hashes: Sequence[bytes]) -> int:
        """Whole chunks that the hashes name."""
        return len(block_hashes) * self.hash_tokens // self.chunk_tokens

    def key(self, block_hashes: Sequence[bytes], chunk: int) -> bytes:
        """The key of a chunk."""
        return bytes(block_hashes[(chunk + 1) * self.chunk_tokens // self.hash_tokens - 1])

    def keys(self, block_hashes: Sequence[bytes], first: int = 0,
             end: int | None = None) -> list[bytes]:
        """The keys of chunks first .. end - 1, by default of all whole ones."""
        step = self.chunk_tokens // self.hash_tokens
        stop = self.chunk_count(block_hashes) if end is None else end
        return list(map(bytes, block_hashes[(first + 1) * step - 1:stop * step:step]))


@dataclasses.dataclass(frozen=True)
class ChunkRun:
    """Chunks first .. end - 1 of a request; `skip_blocks` leading blocks of the first are there
    already, and may be in use by others, so that they must not be written."""

    first: int
    end: int
    skip_blocks: int


def tokens_to_load(shape: Shape, found_chunks: int, local_tokens: int, num_tokens: int) -> int:
    """Tokens beyond the `local_tokens` that are in the engine which a load can bring, of a request
    of `num_tokens` with `found_chunks` leading chunks in the daemon. One token is always left,
    since the engine needs its output to go on."""
    return max(min(found_chunks * shape.chunk_tokens, num_tokens - 1) - local_tokens, 0)


def plan_load(shape: Shape, local_tokens: int, external_tokens: int) -> ChunkRun:
    """The chunks that bring tokens local .. local + external - 1. Whole ones, so that the last may
    go beyond."""
    first = local_tokens // shape.chunk_tokens
    end = -(-(local_tokens + external_tokens) // shape.chunk_tokens)
    # A block that is partly there is written whole, as the engine recomputes none of it.
    skip = (local_tokens - first * shape.chunk_tokens) // shape.block_tokens
    return ChunkRun(first, end, skip)


def storable_chunks(shape: Shape, block_hashes: Sequence[bytes], computed_tokens: int) -> int:
    """Leading chunks whose KV is complete and named, with `computed_tokens` computed. Tokens that
    are only guessed have no hash yet."""
    return min(computed_tokens // shape.chunk_tokens, shape.chunk_count(block_hashes))
