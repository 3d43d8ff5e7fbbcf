"""The options that a user sets."""

import os
import unittest
from unittest import mock

from kvstreamd.vllm.options import Options


class OptionsTest(unittest.TestCase):
    """What is wrong is refused by name."""

    def test_none_is_needed(self):
        with mock.patch.dict(os.environ, {"KVSTREAMD_SOCKET": "/run/sock"}):
            options = Options.parse({})
        self.assertEqual(options.socket, "/run/sock")

    def test_an_unknown_option_is_refused_with_the_known_ones(self):
        with self.assertRaisesRegex(ValueError, "unknown chunk_size; known are .*chunk_tokens"):
            Options.parse({"chunk_size": 256})

    def test_a_value_of_another_type_is_refused(self):
        for name, value in (("chunk_tokens", "256"), ("prefetch", 1), ("lease_ms", True),
                            ("tenant", None)):
            with self.assertRaisesRegex(ValueError, name):
                Options.parse({name: value})

    def test_a_value_out_of_range_is_refused(self):
        for name, value in (("chunk_tokens", -1), ("lookup_timeout_ms", 0), ("lease_ms", 0)):
            with self.assertRaisesRegex(ValueError, name):
                Options.parse({name: value})

    def test_a_lease_outlasts_its_lookup(self):
        with self.assertRaisesRegex(ValueError, "lease_ms is 900, below twice lookup_timeout_ms"):
            Options.parse({"lease_ms": 900})
        Options.parse({"lease_ms": 900, "lookup_timeout_ms": 450})

    def test_blocks_of_one_token_are_refused(self):
        with self.assertRaisesRegex(ValueError, "block_size 1 is not supported"):
            Options.parse({}).chunk_tokens_for(1)

    def test_a_chunk_is_whole_blocks(self):
        self.assertEqual(Options.parse({}).chunk_tokens_for(16), 256)
        self.assertEqual(Options.parse({}).chunk_tokens_for(96), 288)
        self.assertEqual(Options.parse({}).chunk_tokens_for(512), 512)
        with self.assertRaisesRegex(ValueError, "multiple of the engine's block of 96"):
            Options.parse({"chunk_tokens": 256}).chunk_tokens_for(96)


if __name__ == "__main__":
    unittest.main()
