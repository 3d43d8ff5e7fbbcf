"""The options that a user sets."""

import os
import unittest
from unittest import mock

from kvstreamd.lmcache.options import Options


class OptionsTest(unittest.TestCase):
    """What is wrong is refused by name."""

    def test_only_the_weights_must_be_named(self):
        with mock.patch.dict(os.environ, {"KVSTREAMD_SOCKET": "/run/sock"}):
            options = Options.parse({"weights_fingerprint": "4f2a"})
        self.assertEqual(options.socket, "/run/sock")
        for params in ({}, {"weights_fingerprint": ""}):
            with self.assertRaisesRegex(ValueError, "set weights_fingerprint"):
                Options.parse(params)

    def test_an_unknown_option_is_refused_with_the_known_ones(self):
        with self.assertRaisesRegex(ValueError, "unknown path; known are .*weights_fingerprint"):
            Options.parse({"path": "/x", "weights_fingerprint": "4f2a"})

    def test_a_value_of_another_type_or_out_of_range_is_refused(self):
        for name, value in (("tenant", None), ("durable", 1), ("lease_ms", True),
                            ("host_buffer_mib", "64"), ("weights_fingerprint", 7),
                            ("host_buffer_mib", 0), ("chunk_tokens", -1)):
            with self.assertRaisesRegex(ValueError, name):
                Options.parse({"weights_fingerprint": "4f2a", name: value})
        Options.parse({"weights_fingerprint": "4f2a", "store_admission_ms": 0, "lease_ms": 0})


if __name__ == "__main__":
    unittest.main()
