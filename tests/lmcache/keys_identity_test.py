"""The suite that every connector gives itself to."""

from daemon_case import CHUNK_BYTES, DaemonCase
from identity_suite import IdentitySuite
from kvstreamd.lmcache.names import parse
from kvstreamd.lmcache.options import Options
from kvstreamd.lmcache.spaces import describe, salt_for
from lmcache_case import LmcacheCase, key, keys


class IdentityTest(IdentitySuite, DaemonCase):
    """A setting as LMCache and the options of a config tell it: what shapes the bytes and is in
    neither model, rank nor size must be in the option `engine`."""

    def identity(self, setting):
        engine = repr((setting.kv_dtype, setting.quantization, setting.rope, setting.layout,
                       setting.strides, setting.page_tokens, setting.pipeline_parallel,
                       setting.adapter, setting.adapter_revision))
        options = Options.parse({
            "weights_fingerprint": setting.weights_revision, "engine": engine,
            "tenant": setting.tenant or "", "chunk_tokens": setting.chunk_tokens})
        world = setting.tensor_parallel * setting.pipeline_parallel
        name = parse(key(0, model=setting.model, rank=(world << 24) | (world << 8),
                         salt=setting.cache_salt or ""))
        return (describe(options, name.space.model, CHUNK_BYTES),
                salt_for(options, name.space, name.salt))


class KeysTest(LmcacheCase):
    """The same, of keys alone: what LMCache tells apart is apart here."""

    def test_keys_that_differ_in_one_part_share_nothing(self):
        for fields in ({"model": "test/model2"}, {"rank": 0x02000200}, {"group": 1},
                       {"salt": "a"}, {"seed": "other"}):
            with self.subTest(fields):
                ours, theirs = keys(2, seed=str(fields)), keys(2, **{"seed": str(fields), **fields})
                self.stored(ours)
                self.assertEqual(self.loaded(theirs), [False] * 2)
                self.stored(theirs)
                self.assertEqual(self.loaded(ours + theirs), [True] * 4)

    def test_connectors_of_other_weights_engines_and_tenants_share_nothing(self):
        names = keys(2)
        self.stored(names)
        for change in ({"weights_fingerprint": "4f2b"}, {"engine": "fp8_e5m2"}, {"tenant": "a"},
                       {"chunk_tokens": 512}, {"share_across_versions": True}):
            with self.subTest(change):
                other = self.connect_lmcache(**change)
                self.assertEqual(self.found(names, connector=other), [False] * 2)
                self.assertEqual(self.loaded(names, connector=other), [False] * 2)
        self.assertEqual(self.loaded(names, connector=self.connect_lmcache()), [True] * 2)
