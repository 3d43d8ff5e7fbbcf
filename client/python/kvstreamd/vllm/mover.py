"""How a worker's KV meets the daemon: through slots of the host buffer, or straight from the GPU.

Thread rule: the engine's thread alone. Ownership: keeps the engine's tensors alive.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvstreamd import errors
from kvstreamd.client import Client
from kvstreamd.memory import HostRange
from kvstreamd.regions import DeviceBlocks, Region
from kvstreamd.vllm.layout import KVLayout
from kvstreamd.vllm.link import Ready
from kvstreamd.vllm.slots import Slots

logger = logging.getLogger("vllm.kvstreamd")


def open_region(client: Client, layout: KVLayout) -> Region | None:
    """The engine's KV, opened by the daemon; None where it cannot be, so that KV goes through host
    memory. Unavailable and DeadlineExceeded may pass, and are raised."""
    if layout.device.type != "cuda":
        return None
    if not layout.one_allocation():
        logger.warning("kvstreamd: the layers' KV lies in several allocations, so that it goes "
                       "through host memory; ask vLLM for cross-layer blocks")
        return None
    try:
        return client.register_region(layout.tensors, block_dim=layout.block_dims)
    except (errors.Unavailable, errors.DeadlineExceeded):
        raise
    except Exception as error:  # Of whatever kind: the other way is there.
        logger.warning("kvstreamd: KV goes through host memory: %s", error)
        return None


class Mover:
    """Places of chunks of `chunk_blocks` blocks, with `slot_count` slots each way."""

    def __init__(self, layout: KVLayout, ready: Ready, chunk_blocks: int, slot_count: int):
        assert ready.buffer is not None
        self.layout = layout
        self.chunk_bytes = layout.block_bytes * chunk_blocks
        self.load_slots = Slots(ready.buffer, 0, slot_count, chunk_blocks, layout.block_bytes)
        self.store_slots = Slots(ready.buffer, slot_count * self.chunk_bytes, slot_count,
                                 chunk_blocks, layout.block_bytes)
        self.region = ready.region

    def direct(self, blocks: Sequence[int]) -> DeviceBlocks | None:
        """The place of a chunk in the engine's own memory, where the daemon reaches it."""
        return None if self.region is None else self.region.at(blocks)

    def load_place(self, blocks: Sequence[int],
                   skip_blocks: int) -> tuple[HostRange | DeviceBlocks, int | None] | None:
        """Where to load a chunk to, and the slot that is; None when no slot is free. Blocks that
        must not be written keep a chunk out of the engine's memory."""
        if not skip_blocks and (place := self.direct(blocks)) is not None:
            return place, None
        slot = self.load_slots.take()
        return None if slot is None else (self.load_slots.place(slot), slot)

    def put(self, slot: int, blocks: Sequence[int], skip_blocks: int) -> None:
        """Copies a loaded slot into the engine's blocks, but the first `skip_blocks`."""
        self.layout.scatter(self.load_slots.bytes_of(slot)[skip_blocks:], blocks[skip_blocks:])
