"""How the engine's KV tensors hold a block, read from their shapes and strides alone.

A chunk's bytes are block after block, in each the layers in the engine's order, in each of those
the bytes in the order of memory: what a region of the daemon's has, too, so that both ways of
moving KV make the same chunks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from kvstreamd.regions import block_layout
from kvstreamd.vllm.metadata import WorkerShape


@dataclasses.dataclass(frozen=True)
class LayerBlocks:
    """The blocks of one tensor: `view` has bytes, of shape (blocks, ...) with the dimensions in the
    order of memory; `start` is where this layer's bytes begin in a block's, `nbytes` how many they
    are."""

    view: torch.Tensor
    start: int
    nbytes: int


class KVLayout:
    """The layout of a worker's KV of one group. ValueError for tensors that it cannot read."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], block_count: int):
        self.block_count = block_count
        self.layers: list[LayerBlocks] = []
        self.tensors: list[torch.Tensor] = []
        self.block_dims: list[int] = []
        text = []
        seen: set[tuple[int, tuple[int, ...]]] = set()
        start = 0
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"the KV of layer {name} is no tensor: a state that chunks cannot "
                                 "hold")
            # Layers that share their KV have it once.
            identity = (tensor.data_ptr(), tuple(tensor.shape))
            if identity in seen:
                continue
            seen.add(identity)
            blocks, dim = _blocks_of(name, tensor, block_count)
            shape, strides = tuple(blocks.shape), tuple(blocks.stride())
            runs = block_layout(shape, strides, blocks.element_size(), block_dim=dim)
            order = sorted((d for d in range(blocks.dim()) if d != dim),
                           key=lambda d: (-strides[d], d))
            view = blocks.permute(dim, *order).view(torch.uint8)
            self.layers.append(LayerBlocks(view, start, runs.block_bytes))
            self.tensors.append(blocks)
            self.block_dims.append(dim)
            start += runs.block_bytes
            # Not the gaps between runs: they follow from the number of the engine's blocks.
            inner = [size for d, size in enumerate(shape) if d != dim]
            text.append(f"{tensor.dtype} {inner} in order {order}, blocks at {dim}")
        if not self.layers:
            raise ValueError("the engine has no KV")
        self.block_bytes = start
        self.device = self.tensors[0].device
        self._text = ";".join(text)

    def shape(self) -> WorkerShape:
        """What the scheduler has to know of it."""
        dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in self.tensors})
        return WorkerShape(block_bytes=self.block_bytes, block_count=self.block_count,
                           kv_dtype="+".join(dtypes), layout=self._text)

    def one_allocation(self) -> bool:
        """Whether all layers lie in one allocation, as a region must."""
        return len({t.untyped_storage().data_ptr() for t in self.tensors}) == 1

    def gather(self, blocks: Sequence[int], target: torch.Tensor) -> None:
        """Copies blocks to `target`, bytes on the CPU of shape (len(blocks), block_bytes)."""
        index = torch.tensor(blocks, device=self.device)
        for layer in self.layers:
            rows = layer.view.index_select(0, index).reshape(len(blocks), -1)
            target[:, layer.start:layer.start + layer.nbytes] = rows

    def scatter(self, source: torch.Tensor, blocks: Sequence[int]) -> None:
        """Copies `source`, as gather's target, to blocks."""
        index = torch.tensor(blocks, device=self.device)
        for layer in self.layers:
            rows = source[:, layer.start:layer.start + layer.nbytes]
            values = rows.reshape(len(blocks), *layer.view.shape[1:])
            layer.view.index_copy_(0, index, values.to(self.device))


def _blocks_of(name: str, tensor: torch.Tensor, block_count: int) -> tuple[torch.Tensor, int]:
    """The tensor with one dimension for the engine's blocks, and which that is. Kernels may work on
    smaller blocks than the engine: several in a row are then one of the engine's."""
    shape = tuple(tensor.shape)
    # Blocks come first, or after the pair of keys and values.
    dims = [0] + ([1] if tensor.dim() > 3 and shape[0] == 2 else [])
    fitting = [dim for dim in dims if shape[dim] and shape[dim] % block_count == 0]
    exact = [dim for dim in fitting if shape[dim] == block_count]
    found = exact or fitting
    if len(found) != 1:
        raise ValueError(f"no dimension of the KV of layer {name}, of shape {shape}, is clearly "
                         f"that of the engine's {block_count} blocks")
    dim = found[0]
    if shape[dim] == block_count:
        return tensor, dim
    return tensor.unflatten(dim, (block_count, shape[dim] // block_count)), dim


def cross_layer(tensor: torch.Tensor, block_count: int) -> KVLayout:
    """The layout of one tensor that holds all layers, blocks outermost in memory."""
    outermost = max(range(tensor.dim()), key=tensor.stride)
    return KVLayout({"all layers": tensor.movedim(outermost, 0)}, block_count)
