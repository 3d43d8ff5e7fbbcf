"""What LMCache's key strings say."""

import hashlib
import unittest

from kvstreamd.lmcache.names import parse, prefix_hash_of
from lmcache_case import key

HASH = hashlib.sha256(b"chunk").hexdigest()


class NamesTest(unittest.TestCase):
    """Every part of a key counts, and nothing else is a key."""

    def test_every_part_of_a_key_is_in_its_name(self):
        name = parse(f"org/model-7b.v1@01000100@a@{HASH}@tenant salt")
        self.assertEqual(name.space.model, "org/model-7b.v1")
        self.assertEqual(dict(name.space.parts),
                         {"keys": "server", "kv_rank": "01000100", "object_group": "a"})
        self.assertEqual(name.prefix_hash.hex(), HASH)
        self.assertEqual(name.salt, "tenant salt")

    def test_keys_that_differ_in_one_part_have_different_names(self):
        variants = [key(0), key(1), key(0, model="other"), key(0, rank=0x02000200),
                    key(0, group=1), key(0, salt="a"), key(0, salt="b")]
        self.assertEqual(len({parse(each) for each in variants}), len(variants))

    def test_what_is_not_exactly_of_the_form_has_no_name(self):
        for each in ("", "model", f"model@01000100@0@{HASH}@a@b", f"@01000100@0@{HASH}",
                     f"model@1@0@{HASH}", f"model@0100010G@0@{HASH}", f"model@01000100@@{HASH}",
                     f"model@01000100@00@{HASH}", f"model@01000100@0@{HASH.upper()}",
                     f"model@01000100@0@{HASH[1:]}", "model@01000100@0@", f"m@01000100@0@{HASH}@",
                     f"model@2@0@{HASH}@float16", f"model@01000100@0@{HASH} "):
            with self.subTest(each):
                self.assertIsNone(parse(each))

    def test_a_line_break_in_a_model_hides_nothing(self):
        self.assertEqual(parse(f"a\nb@01000100@0@{HASH}").space.model, "a\nb")

    def test_hashes_of_any_length_become_keys_of_the_daemon(self):
        hashes = [bytes(length) for length in (1, 4, 8, 15, 16, 32, 64, 65)]
        made = [prefix_hash_of(each) for each in hashes]
        self.assertEqual(len(set(made)), len(made))
        self.assertTrue(all(16 <= len(each) <= 64 for each in made))
        self.assertEqual(made[4:7], hashes[4:7])


if __name__ == "__main__":
    unittest.main()
