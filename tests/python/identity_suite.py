"""What every connector must keep apart: a suite that each gives itself to.

A connector's test derives from IdentitySuite and DaemonCase and says, in `identity`, which
namespace and salt it makes of an engine's setting. The suite stores under one setting and looks
under others: each difference that shapes the bytes must be a miss, in both directions, and the same
setting a hit, in a process of its own as well; else the misses would prove nothing.
"""

import dataclasses
import importlib
import inspect
import json
import pickle
import subprocess
import sys

from daemon_case import PATIENCE_S, prefix_hashes


@dataclasses.dataclass(frozen=True)
class Setting:
    """What an engine runs with, as far as it shapes KV bytes."""

    model: str = "test/model"
    weights_revision: str = "4f2a"
    kv_dtype: str = "bfloat16"
    quantization: str = ""
    rope: str = "theta=10000"
    layout: str = "L,2,T,H,D"
    strides: tuple[int, ...] = ()
    page_tokens: int = 16
    chunk_tokens: int = 256
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    # Of a request.
    tenant: str | None = None
    adapter: str | None = None
    adapter_revision: str | None = None
    cache_salt: str | None = None


BASE = Setting()
ADAPTED = dataclasses.replace(BASE, adapter="sql", adapter_revision="1")

# Pairs of settings that must not share, by what tells them apart.
DIFFERENCES = {
    "model": (BASE, dataclasses.replace(BASE, model="test/model-instruct")),
    "weights revision": (BASE, dataclasses.replace(BASE, weights_revision="4f2b")),
    "KV dtype": (BASE, dataclasses.replace(BASE, kv_dtype="fp8_e4m3")),
    "quantization": (BASE, dataclasses.replace(BASE, quantization="fp8, scales per tensor")),
    "rope": (BASE, dataclasses.replace(BASE, rope="theta=1000000")),
    "layout": (BASE, dataclasses.replace(BASE, layout="L,2,H,T,D")),
    "strides": (BASE, dataclasses.replace(BASE, strides=(4096, 2048, 128, 2))),
    "page size": (BASE, dataclasses.replace(BASE, page_tokens=32)),
    "chunk size": (BASE, dataclasses.replace(BASE, chunk_tokens=128)),
    "tensor parallel size": (BASE, dataclasses.replace(BASE, tensor_parallel=2)),
    "pipeline parallel size": (BASE, dataclasses.replace(BASE, pipeline_parallel=2)),
    "tenant": (BASE, dataclasses.replace(BASE, tenant="a")),
    "tenants": tuple(dataclasses.replace(BASE, tenant=tenant) for tenant in "ab"),
    "adapter": (BASE, ADAPTED),
    "adapters": (ADAPTED, dataclasses.replace(ADAPTED, adapter="chat")),
    "adapter's revision": (ADAPTED, dataclasses.replace(ADAPTED, adapter_revision="2")),
    "cache salt": (BASE, dataclasses.replace(BASE, cache_salt="s")),
    "tenant or adapter": (dataclasses.replace(BASE, tenant="x"),
                          dataclasses.replace(BASE, adapter="x")),
    "tenant or cache salt": (dataclasses.replace(BASE, tenant="x"),
                             dataclasses.replace(BASE, cache_salt="x")),
    "where one name ends": (dataclasses.replace(BASE, tenant="ab", adapter="c"),
                            dataclasses.replace(BASE, tenant="a", adapter="bc")),
}


def named(suite, setting):
    """What a suite's connector makes of a setting, as data."""
    namespace_description, salt = suite.identity(setting)
    message = namespace_description.to_message()
    return [message.SerializeToString(deterministic=True).hex(), salt.hex()]


class IdentitySuite:
    """Mixed into a DaemonCase."""

    def identity(self, setting):
        """(NamespaceDescription, salt) that the connector makes of a setting. Its chunks are
        daemon_case.CHUNK_BYTES."""
        raise NotImplementedError

    def found(self, client, setting, hashes):
        """How many leading chunks a lookup finds under a setting."""
        namespace_description, salt = self.identity(setting)
        namespace = client.register_namespace(namespace_description)
        return client.lookup(namespace, hashes, salt=salt).leading_run

    def keep_under(self, setting, hashes):
        """Stores under a setting."""
        namespace_description, salt = self.identity(setting)
        self.keep(self.client.register_namespace(namespace_description), hashes, salt=salt)

    def test_the_same_setting_shares(self):
        for number, setting in enumerate((BASE, ADAPTED, *(b for _, b in DIFFERENCES.values()))):
            hashes = prefix_hashes(2, f"same {number}")
            self.keep_under(setting, hashes)
            # Another client, as another engine is; nothing of the first is remembered.
            self.assertEqual(self.found(self.connect(), dataclasses.replace(setting), hashes), 2)

    def test_another_process_makes_the_same_of_a_setting(self):
        # Python hashes strings anew in each process: what comes of that is never found again.
        settings = [BASE, ADAPTED, *(other for _, other in DIFFERENCES.values())]
        test = f"{inspect.getmodule(type(self)).__spec__.name}:{type(self).__name__}"
        ran = subprocess.run([sys.executable, __file__, test], input=pickle.dumps(settings),
                             stdout=subprocess.PIPE, check=True, timeout=PATIENCE_S)
        self.assertEqual(json.loads(ran.stdout), [named(self, each) for each in settings])

    def test_settings_that_differ_share_nothing(self):
        for name, pair in DIFFERENCES.items():
            for stored, asked in (pair, pair[::-1]):
                with self.subTest(name, stored=stored):
                    hashes = prefix_hashes(1, f"{name} {stored}")
                    self.keep_under(stored, hashes)
                    self.assertEqual(self.found(self.client, asked, hashes), 0)
                    self.assertEqual(self.found(self.client, stored, hashes), 1)

    def test_bytes_of_one_setting_are_never_read_under_another(self):
        for name, (one, other) in DIFFERENCES.items():
            with self.subTest(name):
                hashes = prefix_hashes(1, f"bytes {name}")
                for setting, mark in ((one, b"one"), (other, b"other")):
                    description, salt = self.identity(setting)
                    namespace = self.client.register_namespace(description)
                    self.keep(namespace, hashes, salt=salt, more=mark)
                for setting, mark in ((one, b"one"), (other, b"other")):
                    description, salt = self.identity(setting)
                    namespace = self.client.register_namespace(description)
                    outcome = self.load(namespace, hashes, salt=salt, more=mark)
                    self.assertEqual(outcome.leading_valid, 1)


def main():
    """In a process of its own: names the settings of stdin as the suite `module:class` does."""
    module, name = sys.argv[1].split(":")
    suite = getattr(importlib.import_module(module), name)()
    settings = pickle.loads(sys.stdin.buffer.read())
    json.dump([named(suite, setting) for setting in settings], sys.stdout)


if __name__ == "__main__":
    # Settings are of this module by its name, also where it is the program.
    sys.modules["identity_suite"] = sys.modules["__main__"]
    main()
