"""Keys of chunks, and plans of what to load and to store."""

import hashlib
import unittest

from kvstreamd.vllm import keys

SHAPE = keys.Shape(hash_tokens=16, block_tokens=16, chunk_tokens=64)
# Hashes of half a block, as an engine with finer hashes has them.
FINE = keys.Shape(hash_tokens=8, block_tokens=16, chunk_tokens=64)


def hashes(count):
    return [hashlib.sha256(bytes([i])).digest() for i in range(count)]


class KeysTest(unittest.TestCase):
    """Chunks are whole, and named by their last block."""

    def test_a_chunk_is_named_by_the_hash_of_its_last_block(self):
        blocks = hashes(13)
        self.assertEqual(SHAPE.keys(blocks), [blocks[3], blocks[7], blocks[11]])
        self.assertEqual(SHAPE.keys(blocks, 1, 2), [blocks[7]])
        self.assertEqual([SHAPE.key(blocks, i) for i in range(3)], SHAPE.keys(blocks))

    def test_finer_hashes_name_the_same_ends(self):
        fine = hashes(26)
        self.assertEqual(FINE.keys(fine), [fine[7], fine[15], fine[23]])
        self.assertEqual(FINE.chunk_count(fine), 3)

    def test_less_than_a_chunk_has_no_key(self):
        self.assertEqual(SHAPE.keys(hashes(3)), [])
        self.assertEqual(SHAPE.keys([]), [])


class LoadTest(unittest.TestCase):
    """What to load beyond what the engine has."""

    def test_all_that_is_found_is_loaded(self):
        self.assertEqual(keys.tokens_to_load(SHAPE, 3, 0, 1000), 192)

    def test_a_whole_prompt_leaves_one_token_to_compute(self):
        self.assertEqual(keys.tokens_to_load(SHAPE, 3, 0, 192), 191)
        self.assertEqual(keys.tokens_to_load(SHAPE, 3, 64, 192), 127)

    def test_what_the_engine_has_is_not_loaded(self):
        self.assertEqual(keys.tokens_to_load(SHAPE, 3, 192, 1000), 0)
        self.assertEqual(keys.tokens_to_load(SHAPE, 3, 208, 1000), 0)
        self.assertEqual(keys.tokens_to_load(SHAPE, 3, 80, 1000), 112)

    def test_a_plan_has_whole_chunks_and_spares_the_blocks_that_are_there(self):
        self.assertEqual(keys.plan_load(SHAPE, 0, 191), keys.ChunkRun(0, 3, 0))
        self.assertEqual(keys.plan_load(SHAPE, 80, 112), keys.ChunkRun(1, 3, 1))
        self.assertEqual(keys.plan_load(SHAPE, 128, 64), keys.ChunkRun(2, 3, 0))

    def test_every_plan_covers_what_was_promised_and_writes_nothing_before(self):
        for found in range(1, 5):
            for local in range(0, 300, 16):
                for total in (64, 65, 191, 192, 193, 256, 300):
                    tokens = keys.tokens_to_load(SHAPE, found, local, total)
                    if tokens == 0:
                        continue
                    run = keys.plan_load(SHAPE, local, tokens)
                    self.assertLess(local + tokens, total + 1)
                    self.assertLessEqual(run.end, found)
                    self.assertEqual(run.first * 64 + run.skip_blocks * 16, local)
                    self.assertGreaterEqual(run.end * 64, local + tokens)


class StoreTest(unittest.TestCase):
    """What is complete."""

    def test_a_chunk_is_stored_once_it_is_computed_and_named(self):
        self.assertEqual(keys.storable_chunks(SHAPE, hashes(12), 191), 2)
        self.assertEqual(keys.storable_chunks(SHAPE, hashes(12), 192), 3)
        # Guessed tokens have no hash.
        self.assertEqual(keys.storable_chunks(SHAPE, hashes(11), 200), 2)


if __name__ == "__main__":
    unittest.main()
