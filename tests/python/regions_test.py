"""How blocks lie in tensors, without a GPU: against what indexing the same array says."""

import random
import unittest
from unittest import mock

import numpy as np

import kvstreamd
from kvstreamd import errors


def view_layout(view, block_dim, base):
    """The layout of a view of the bytes of `base`."""
    offset = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0])
    return kvstreamd.block_layout(view.shape, tuple(s // view.itemsize for s in view.strides),
                                  view.itemsize, block_dim=block_dim, offset=offset)


def bytes_of_block(layout, base, block):
    """The offsets in `base` that a chunk's bytes of this block come from, in their order."""
    start = layout.offset + block * layout.block_stride
    return [start + offset + i for offset, length in layout.runs for i in range(length)]


class LayoutTest(unittest.TestCase):
    """Layouts of the tensors that engines have."""

    def check(self, view, block_dim, base, run_count=None):
        """Every block's bytes are those that indexing selects, in the order of memory."""
        layout = view_layout(view, block_dim, base)
        numbers = np.arange(base.size * base.itemsize).astype(np.int64)
        itemsize = view.itemsize
        # The number of each element's first byte, seen through the same shape and strides.
        offset = layout.offset
        firsts = np.lib.stride_tricks.as_strided(
            numbers[offset:], view.shape, tuple(s * numbers.itemsize for s in view.strides))
        for block in range(layout.block_count):
            expected = sorted(int(first) + i for first in firsts.take(block, block_dim).flat
                              for i in range(itemsize))
            self.assertEqual(bytes_of_block(layout, base, block), expected)
        if run_count is not None:
            self.assertEqual(len(layout.runs), run_count)
        return layout

    def test_blocks_outermost_are_one_run(self):
        base = np.zeros((6, 2, 4, 3, 8), dtype=np.uint16)
        layout = self.check(base, 0, base, run_count=1)
        self.assertEqual(layout.block_bytes, 2 * 4 * 3 * 8 * 2)
        self.assertEqual(layout.name, "0+384")

    def test_keys_and_values_apart_are_two_runs(self):
        base = np.zeros((2, 6, 4, 3, 8), dtype=np.uint16)
        layout = self.check(base, 1, base, run_count=2)
        self.assertEqual(layout.block_stride, 4 * 3 * 8 * 2)

    def test_heads_before_tokens_lie_together_all_the_same(self):
        base = np.zeros((6, 2, 3, 4, 8), dtype=np.uint16)
        self.check(base.transpose(0, 1, 3, 2, 4), 0, base, run_count=1)

    def test_heads_outermost_are_a_run_each(self):
        base = np.zeros((3, 6, 2, 4, 8), dtype=np.uint16)
        self.check(base.transpose(1, 2, 3, 0, 4), 0, base, run_count=3)

    def test_a_layer_of_a_tensor_of_all_layers_begins_where_it_lies(self):
        base = np.zeros((6, 5, 2, 4, 8), dtype=np.uint16)
        layout = self.check(base[:, 3], 0, base, run_count=1)
        self.assertEqual((layout.offset, layout.block_stride), (3 * 128, 5 * 128))

    def test_padding_is_left_out(self):
        base = np.zeros((6, 4, 10), dtype=np.uint8)
        layout = self.check(base[:, :, :8], 0, base, run_count=4)
        self.assertEqual(layout.block_bytes, 32)

    def test_one_byte_elements_and_dimensions_of_one(self):
        base = np.zeros((6, 1, 4, 1), dtype=np.uint8)
        self.check(base, 0, base, run_count=1)

    def test_random_tensors_have_the_bytes_that_indexing_selects(self):
        chance = random.Random(7)
        for _ in range(300):
            dims = chance.randrange(1, 6)
            base = np.zeros([chance.randrange(1, 5) for _ in range(dims)],
                            dtype=chance.choice([np.uint8, np.uint16, np.uint32]))
            view = base.transpose(chance.sample(range(dims), dims))
            cuts = tuple(slice(chance.randrange(size), None) for size in view.shape)
            view = view[cuts]
            self.check(view, chance.randrange(dims), base)

    def test_elements_that_share_bytes_are_refused(self):
        for shape, strides, block_dim in (((4, 8), (0, 1), 0), ((4, 8), (8, 0), 0),
                                          ((4, 8, 8), (64, 4, 1), 0), ((4, 8), (4, 1), 0),
                                          ((4, 8), (-8, 1), 0)):
            with self.subTest(shape=shape, strides=strides):
                with self.assertRaises(errors.InvalidArgument):
                    kvstreamd.block_layout(shape, strides, 2, block_dim=block_dim)

    def test_what_is_no_tensor_is_refused(self):
        for arguments in (((4, 8), (8,), 2, 0), ((4, 8), (8, 1), 2, 2), ((0, 8), (8, 1), 2, 0),
                          ((4, 8), (8, 1), 0, 0), ((), (), 2, 0)):
            with self.subTest(arguments=arguments):
                with self.assertRaises(errors.InvalidArgument):
                    kvstreamd.block_layout(*arguments[:3], block_dim=arguments[3])

    def test_a_region_counts_the_blocks_of_all_its_tensors(self):
        layouts = [kvstreamd.block_layout((6, 4, 8), (32, 8, 1), 2, block_dim=0, offset=i * 384)
                   for i in range(3)]
        region = kvstreamd.Region(layouts, [])
        self.assertEqual((region.block_count, region.block_bytes), (6, 192))
        self.assertEqual(region.at([4, 2]).blocks, [4, 2])
        with self.assertRaises(errors.FailedPrecondition):
            region.number_in(mock.Mock())


if __name__ == "__main__":
    unittest.main()
