"""A part of the host buffer, divided into chunks. Used by the engine's thread alone."""

from __future__ import annotations

import torch

from kvstreamd.memory import HostBuffer, HostRange


class Slots:
    """`count` chunks from byte `offset` of a buffer."""

    def __init__(self, buffer: HostBuffer, offset: int, count: int, chunk_blocks: int,
                 block_bytes: int):
        self._buffer = buffer
        self._offset = offset
        self._chunk_bytes = chunk_blocks * block_bytes
        # Bytes, of shape (slots, blocks of a chunk, bytes of a block).
        self._bytes = buffer.torch(torch.uint8, (count, chunk_blocks, block_bytes), offset)
        self._free = list(range(count))

    def take(self) -> int | None:
        """A slot; None when all are in use."""
        return self._free.pop() if self._free else None

    def give(self, slot: int) -> None:
        """Frees a slot that the daemon does not touch any more."""
        self._free.append(slot)

    def place(self, slot: int) -> HostRange:
        """Where the daemon finds it."""
        return self._buffer.at(self._offset + slot * self._chunk_bytes)

    def bytes_of(self, slot: int) -> torch.Tensor:
        """Its bytes, shape (blocks of a chunk, bytes of a block)."""
        return self._bytes[slot]
