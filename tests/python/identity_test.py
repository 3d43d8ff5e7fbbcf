"""Namespaces and salts of the client itself, by the suite that connectors run too."""

import unittest

import kvstreamd
from daemon_case import CHUNK_BYTES, DaemonCase
from identity_suite import IdentitySuite
from kvstreamd import errors


class ClientIdentityTest(IdentitySuite, DaemonCase):
    """The client's own helpers, used as README.md says."""

    def identity(self, setting):
        return kvstreamd.NamespaceDescription(
            model=setting.model,
            weights_fingerprint=kvstreamd.fingerprint_of(revision=setting.weights_revision),
            kv_dtype=setting.kv_dtype, quantization=setting.quantization, rope=setting.rope,
            layout=setting.layout, strides=setting.strides, page_tokens=setting.page_tokens,
            chunk_tokens=setting.chunk_tokens, tensor_parallel=setting.tensor_parallel,
            pipeline_parallel=setting.pipeline_parallel,
            groups=[kvstreamd.Group(chunk_bytes=CHUNK_BYTES)]), kvstreamd.salt_of(
                tenant=setting.tenant, adapter=setting.adapter,
                adapter_revision=setting.adapter_revision, cache_salt=setting.cache_salt)


class SaltTest(unittest.TestCase):
    """Digests of named parts."""

    def test_no_part_is_the_empty_salt(self):
        self.assertEqual(kvstreamd.salt_of(), b"")
        self.assertEqual(kvstreamd.salt_of(tenant=None, adapter=None), b"")

    def test_a_digest_is_the_same_in_every_process(self):
        self.assertEqual(kvstreamd.fingerprint_of(a="x", b=1, c=b"y").hex(), DIGEST)

    def test_order_does_not_matter(self):
        self.assertEqual(kvstreamd.fingerprint_of(a="x", b=1), kvstreamd.fingerprint_of(b=1, a="x"))

    def test_names_types_and_lengths_do(self):
        digests = [kvstreamd.fingerprint_of(**parts) for parts in (
            {}, {"a": ""}, {"a": b""}, {"b": ""}, {"a": "1"}, {"a": 1}, {"a": b"1"},
            {"a": "1", "b": "2"}, {"a": "12"}, {"ab": "1"}, {"a": "b1"})]
        self.assertEqual(len(set(digests)), len(digests))

    def test_what_has_no_canonical_bytes_is_refused(self):
        for value in (1.5, True, ["x"], {"x": 1}):
            with self.assertRaises(errors.InvalidArgument):
                kvstreamd.fingerprint_of(part=value)
        with self.assertRaises(errors.InvalidArgument):
            kvstreamd.salt_of(adapter_revision="2")


# Stored KV is found by it: a change loses all that is stored.
DIGEST = "f23eb1385e7714a7558580a8ef0ac40e0cb6aec04af0800b3a447bf99aa63e23"


if __name__ == "__main__":
    unittest.main()
