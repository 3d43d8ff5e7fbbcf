"""Room for objects of any size."""

import random
import unittest

from kvstreamd.lmcache.extents import ALIGNMENT, Extents, aligned


class ExtentsTest(unittest.TestCase):
    """What is given back can be taken again, whole."""

    def test_objects_never_overlap_and_all_room_comes_back(self):
        chance = random.Random(1)
        extents = Extents(ALIGNMENT, 64 * ALIGNMENT)
        held = []
        for _ in range(2000):
            if held and chance.random() < 0.5:
                extents.give(*held.pop(chance.randrange(len(held))))
                continue
            nbytes = chance.randrange(1, 9 * ALIGNMENT)
            offset = extents.take(nbytes)
            if offset is None:
                continue
            self.assertEqual(offset % ALIGNMENT, 0)
            self.assertGreaterEqual(offset, ALIGNMENT)
            self.assertLessEqual(offset + nbytes, 65 * ALIGNMENT)
            for other, size in held:
                self.assertTrue(offset + aligned(nbytes) <= other
                                or other + aligned(size) <= offset)
            held.append((offset, nbytes))
        for each in held:
            extents.give(*each)
        self.assertEqual(extents.take(64 * ALIGNMENT), ALIGNMENT)
        self.assertIsNone(extents.take(1))

    def test_what_is_larger_than_all_room_has_none(self):
        self.assertIsNone(Extents(0, ALIGNMENT).take(ALIGNMENT + 1))


if __name__ == "__main__":
    unittest.main()
