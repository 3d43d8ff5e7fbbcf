"""Layouts of KV tensors as releases of vLLM have had them, read from shape and stride."""

import unittest

import torch

from kvstreamd.regions import block_layout
from kvstreamd.vllm.layout import KVLayout, cross_layer

BLOCKS, TOKENS, HEADS, SIZE = 7, 4, 3, 8


def numbered(shape, dtype=torch.bfloat16):
    """Bytes that are all over the place, and the same each time."""
    generator = torch.Generator().manual_seed(1)
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8,
                         generator=generator).view(dtype).view(shape)


def layouts():
    """By name: the layers' tensors, and the layout of them."""
    pair_outside = {f"l{i}": numbered((2, BLOCKS, TOKENS, HEADS, SIZE)) for i in range(2)}
    pair_inside = {f"l{i}": numbered((BLOCKS, 2, TOKENS, HEADS, SIZE)) for i in range(2)}
    heads_first = {f"l{i}": numbered((BLOCKS, HEADS, TOKENS, 2 * SIZE)).transpose(1, 2)
                   for i in range(2)}
    latent = {f"l{i}": numbered((BLOCKS, TOKENS, 16), torch.float8_e4m3fn) for i in range(3)}
    one = numbered((BLOCKS, 2, HEADS, TOKENS, 2 * SIZE))
    views = {f"l{i}": one[:, i] for i in range(2)}
    kernel_blocks = {f"l{i}": numbered((BLOCKS * 2, HEADS, TOKENS // 2, SIZE)) for i in range(2)}
    named = {"pair outside": pair_outside, "pair inside": pair_inside, "heads first": heads_first,
             "latent": latent, "views of one": views, "smaller kernel blocks": kernel_blocks}
    return {name: KVLayout(tensors, BLOCKS) for name, tensors in named.items()} | {
        "cross layer": cross_layer(numbered((BLOCKS, 2, TOKENS, HEADS, SIZE)), BLOCKS)}


class LayoutTest(unittest.TestCase):
    """What is gathered is what a region has, and scattering brings it back."""

    def test_a_chunk_has_the_bytes_of_a_region_in_its_order(self):
        for name, layout in layouts().items():
            with self.subTest(name):
                chunk = torch.empty((3, layout.block_bytes), dtype=torch.uint8)
                layout.gather([5, 0, 2], chunk)
                expected = []
                for block in (5, 0, 2):
                    for tensor, dim in zip(layout.tensors, layout.block_dims):
                        where = block_layout(tensor.shape, tensor.stride(), tensor.element_size(),
                                             block_dim=dim)
                        memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                        start = (tensor.storage_offset() * tensor.element_size()
                                 + block * where.block_stride)
                        expected += [memory[start + offset:start + offset + length]
                                     for offset, length in where.runs]
                self.assertTrue(torch.equal(chunk.flatten(), torch.cat(expected)))

    def test_scattering_brings_blocks_back_and_touches_no_other(self):
        for name, layout in layouts().items():
            with self.subTest(name):
                before = torch.empty((BLOCKS, layout.block_bytes), dtype=torch.uint8)
                layout.gather(list(range(BLOCKS)), before)
                chunk = before[[5, 0, 2]].clone()
                for tensor in layout.tensors:
                    tensor.view(torch.uint8).select(layout.block_dims[0], 6).fill_(9)
                layout.scatter(chunk, [1, 6, 3])
                after = torch.empty_like(before)
                layout.gather(list(range(BLOCKS)), after)
                expected = before.clone()
                expected[[1, 6, 3]] = chunk
                self.assertTrue(torch.equal(after, expected))

    def test_layouts_of_equal_size_have_different_names(self):
        names = {name: layout.shape().layout for name, layout in layouts().items()}
        self.assertEqual(len(set(names.values())), len(names), names)

    def test_the_number_of_blocks_does_not_name_a_layout(self):
        one, other = (KVLayout({"l": numbered((2, blocks, TOKENS, HEADS, SIZE))}, blocks).shape()
                      for blocks in (7, 9))
        self.assertEqual(one.layout, other.layout)

    def test_layers_that_share_their_kv_have_it_once(self):
        tensor = numbered((BLOCKS, 2, TOKENS, HEADS, SIZE))
        self.assertEqual(len(KVLayout({"a": tensor, "b": tensor}, BLOCKS).layers), 1)

    def test_what_cannot_be_read_is_refused_with_the_layer(self):
        for tensors in ({"state": [numbered((BLOCKS, 4))]},
                        {"odd": numbered((BLOCKS + 1, 2, TOKENS, HEADS))}):
            with self.assertRaisesRegex(ValueError, next(iter(tensors))):
                KVLayout(tensors, BLOCKS)
        with self.assertRaises(ValueError):
            KVLayout({}, BLOCKS)


if __name__ == "__main__":
    unittest.main()
