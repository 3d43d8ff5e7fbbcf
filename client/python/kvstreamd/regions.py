"""Regions: GPU memory that the daemon opens, and how the blocks of tensors lie in it.

The layout is data: byte runs of a block, from shape and stride alone, so that the daemon knows
nothing of attention and nothing depends on an engine's version.

Thread rule: any thread. Ownership: a region keeps its tensors alive until it is unregistered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvstreamd import errors
from kvstreamd.memory import Bound


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """Where the blocks of one tensor lie: block b begins at offset + b * block_stride. All in
    bytes, offsets from the start of whatever holds the tensor."""

    offset: int
    block_count: int
    block_stride: int
    # (offset, length) of a block's contiguous runs, from the block's start, ascending: the order of
    # a chunk's bytes is the order in memory.
    runs: tuple[tuple[int, int], ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, without the gaps between its runs."""
        return sum(length for _, length in self.runs)

    @property
    def name(self) -> str:
        """Runs and gaps, in text: part of what NamespaceDescription.layout has to say, since bytes
        of other runs are other bytes."""
        return ",".join(f"{offset}+{length}" for offset, length in self.runs)


def block_layout(shape: Sequence[int], strides: Sequence[int], itemsize: int, *, block_dim: int,
                 offset: int = 0) -> BlockLayout:
    """The layout of a tensor of `shape` and `strides` (elements) of `itemsize` bytes, whose
    dimension `block_dim` counts the blocks, and which begins at byte `offset`. InvalidArgument for
    elements that share bytes, as expanded tensors' do, and for a tensor without elements."""
    if len(shape) != len(strides) or not 0 <= block_dim < len(shape):
        raise errors.InvalidArgument(f"lay out blocks: shape {tuple(shape)}, strides "
                                     f"{tuple(strides)}, dimension {block_dim}")
    if min(shape) <= 0 or itemsize <= 0 or offset < 0:
        raise errors.InvalidArgument(f"lay out blocks: no elements in shape {tuple(shape)}")
    inner = sorted(((stride * itemsize, size)
                    for i, (size, stride) in enumerate(zip(shape, strides))
                    if i != block_dim and size > 1), reverse=True)
    run = itemsize
    outer: list[tuple[int, int]] = []
    for stride, size in reversed(inner):
        if not outer and stride == run:
            run *= size
        else:
            outer.append((stride, size))
    # What the dimensions inside of each span must end before its next step.
    span = run
    for stride, size in outer:
        if stride < span:
            raise errors.InvalidArgument("lay out blocks: elements share bytes")
        span += stride * (size - 1)
    starts = [0]
    for stride, size in reversed(outer):
        starts = [start + i * stride for start in starts for i in range(size)]
    block_stride = strides[block_dim] * itemsize
    layout = BlockLayout(offset, shape[block_dim], block_stride,
                         tuple((start, run) for start in starts))
    if layout.block_count > 1 and not _disjoint(layout):
        raise errors.InvalidArgument("lay out blocks: blocks share bytes")
    return layout


def _disjoint(layout: BlockLayout) -> bool:
    """Whether no two blocks share a byte."""
    end = layout.runs[-1][0] + layout.runs[-1][1]
    stride = layout.block_stride
    if stride >= end:
        return True
    if stride <= 0:
        return False
    # Blocks that lie between each other's runs: the gaps must hold all blocks that reach into them.
    reach = min(layout.block_count - 1, (end - 1) // stride)
    taken = sorted((start + block * stride, start + block * stride + length)
                   for block in range(reach + 1) for start, length in layout.runs)
    return all(before[1] <= after[0] for before, after in zip(taken, taken[1:]))


class Region(Bound):
    """GPU memory that the daemon has opened, until Client.unregister_region or the session's end.
    The memory must not be freed before; `tensors` is kept for that."""

    def __init__(self, layouts: Sequence[BlockLayout], tensors: Sequence[Any]):
        self.layouts = tuple(layouts)
        self.tensors = tuple(tensors)

    def __repr__(self) -> str:
        return f"Region({self.block_count} blocks of {self.block_bytes} bytes)"

    @property
    def block_count(self) -> int:
        """Blocks in each of its tensors."""
        return self.layouts[0].block_count

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all of its tensors; a chunk is so many blocks."""
        return sum(layout.block_bytes for layout in self.layouts)

    def at(self, blocks: Sequence[int]) -> "DeviceBlocks":
        """The place of a chunk that lies in these blocks, in its order."""
        return DeviceBlocks(self, blocks)


def region_of(tensors: Sequence[Any], block_dim: int | Sequence[int]) -> Region:
    """A region of PyTorch tensors, not registered yet. `block_dim`: the dimension that counts
    blocks, of all or of each. Raises InvalidArgument."""
    dims = [block_dim] * len(tensors) if isinstance(block_dim, int) else list(block_dim)
    if not tensors or len(dims) != len(tensors):
        raise errors.InvalidArgument(
            f"register region: {len(tensors)} tensors, {len(dims)} block dimensions")
    base = min(tensor.data_ptr() for tensor in tensors)
    layouts = [block_layout(tuple(t.shape), tuple(t.stride()), t.element_size(), block_dim=dim,
                            offset=t.data_ptr() - base) for t, dim in zip(tensors, dims)]
    if len({layout.block_count for layout in layouts}) != 1:
        raise errors.InvalidArgument("register region: the tensors' block counts differ")
    return Region(layouts, tensors)


class DeviceBlocks(NamedTuple):
    """Blocks of a region. Before a store the caller has waited for what wrote them, before a read
    for what still uses them: the daemon knows none of its streams."""

    region: Region
    blocks: Sequence[int]
