"""What the connector makes of an engine's settings, by the suite that connectors share."""

import dataclasses
import functools
import pathlib
import tempfile
import types
import unittest
from unittest import mock

import kvstreamd
from daemon_case import CHUNK_BYTES, DaemonCase
from identity_suite import BASE, IdentitySuite
from kvstreamd.vllm import fingerprint
from kvstreamd.vllm.keys import Shape
from kvstreamd.vllm.metadata import WorkerShape


def engine_config(setting):
    """As vLLM's, as far as it is looked at."""
    hf_config = types.SimpleNamespace(rope_parameters=setting.rope,
                                      to_dict=lambda: {"architecture": "llama"})
    return types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            model=setting.model, quantization=setting.quantization, dtype="bfloat16",
            hf_config=hf_config, hf_text_config=hf_config, max_model_len=4096,
            multimodal_config=None),
        cache_config=types.SimpleNamespace(cache_dtype=setting.kv_dtype,
                                           prefix_caching_hash_algo="sha256"),
        parallel_config=types.SimpleNamespace(
            tensor_parallel_size=setting.tensor_parallel,
            pipeline_parallel_size=setting.pipeline_parallel))


class ConnectorIdentityTest(IdentitySuite, DaemonCase):
    """Adapters are folders, as a server's are."""

    @functools.cached_property
    def adapters(self):
        """Made when it is asked for: the suite has another process name settings."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def request(self, setting):
        """A request of vLLM's."""
        adapter = None
        if setting.adapter is not None:
            folder = self.adapters / f"{setting.adapter}-{setting.adapter_revision}"
            folder.mkdir(exist_ok=True)
            (folder / "adapter_model.safetensors").write_text(str(setting.adapter_revision),
                                                              encoding="ascii")
            adapter = types.SimpleNamespace(lora_name=setting.adapter, lora_int_id=1,
                                            lora_path=str(folder))
        return types.SimpleNamespace(lora_request=adapter, cache_salt=setting.cache_salt)

    def identity(self, setting):
        blocks = setting.chunk_tokens // setting.page_tokens
        worker = WorkerShape(block_bytes=CHUNK_BYTES // blocks, block_count=100,
                             kv_dtype=setting.kv_dtype,
                             layout=f"{setting.layout} {setting.strides}")
        description = fingerprint.describe(
            engine_config(setting),
            fingerprint.weights_fingerprint(setting.model, None, "auto", setting.weights_revision),
            Shape(setting.page_tokens, setting.page_tokens, setting.chunk_tokens), worker,
            replicated=False, release="0.32")
        # The suite keeps one shard of whatever shape.
        description = dataclasses.replace(
            description, groups=[kvstreamd.Group(chunk_bytes=CHUNK_BYTES)])
        return description, fingerprint.Salts(setting.tenant or "").of(self.request(setting))


class PreprocessingTest(unittest.TestCase):
    """An image's hash says nothing of what is made of the image."""

    def test_settings_of_images_and_sound_tell_namespaces_apart(self):
        config = engine_config(BASE)
        shape = Shape(16, 16, 64)
        worker = WorkerShape(block_bytes=64, block_count=10, kv_dtype="bfloat16", layout="l")
        digests = []
        for settings in (None, {"mm_processor_kwargs": {"max_pixels": 100}},
                         {"mm_processor_kwargs": {"max_pixels": 200}},
                         {"media_io_kwargs": {"video": {"num_frames": 8}}},
                         {"video_pruning_rate": 0.5}):
            if settings is not None:
                config.model_config.multimodal_config = types.SimpleNamespace(**settings)
            digests.append(fingerprint.describe(config, b"weights", shape, worker,
                                                replicated=False, release="0.32").extra)
        self.assertEqual(len({str(each) for each in digests}), len(digests))


class WeightsTest(unittest.TestCase):
    """Equal names never share bytes by accident."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def model(self, name, data):
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(data)
        return str(folder)

    def test_one_byte_of_the_weights_makes_another_model(self):
        one = fingerprint.weights_fingerprint(self.model("a", bytes(1000)), None, "auto", "")
        same = fingerprint.weights_fingerprint(self.model("b", bytes(1000)), None, "auto", "")
        other = fingerprint.weights_fingerprint(self.model("a", bytes(999) + b"x"), None, "auto",
                                                "")
        self.assertEqual(one, same)
        self.assertNotEqual(one, other)

    def test_what_a_local_model_makes_of_images_is_part_of_it(self):
        folder = self.model("a", bytes(1000))
        seen = [fingerprint.weights_fingerprint(folder, None, "auto", "")]
        for name in ("preprocessor_config.json", "video_preprocessor_config.json",
                     "processor_config.json", "modeling.py"):
            (pathlib.Path(folder) / name).write_text("{}", encoding="ascii")
            seen.append(fingerprint.weights_fingerprint(folder, None, "auto", ""))
        self.assertEqual(len(set(seen)), len(seen))

    def test_a_commit_names_weights(self):
        commit = "0123456789" * 4
        snapshot = self.model(f"snapshots/{commit}", b"weights")
        self.assertEqual(fingerprint.weights_fingerprint(snapshot, None, "auto", ""),
                         fingerprint.weights_fingerprint("some/model", commit, "auto", ""))

    def test_what_may_change_behind_its_name_is_refused(self):
        for model, revision, load_format in (("some/model", None, "auto"),
                                             ("some/model", "main", "auto"),
                                             (str(self.folder), None, "auto"),
                                             (str(self.folder), None, "dummy")):
            with self.assertRaisesRegex(ValueError, "set .*weights_fingerprint"):
                fingerprint.weights_fingerprint(model, revision, load_format, "")
            self.assertTrue(fingerprint.weights_fingerprint(model, revision, load_format, "mine"))


class SaltsTest(unittest.TestCase):
    """Adapters that change, and resets."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.salts = fingerprint.Salts("")

    def adapter(self, data, number=1, folder="sql"):
        """A request with the adapter "sql" of such bytes."""
        path = self.folder / folder
        path.mkdir(exist_ok=True)
        (path / "adapter_model.safetensors").write_bytes(data)
        return types.SimpleNamespace(cache_salt=None, lora_request=types.SimpleNamespace(
            lora_name="sql", lora_int_id=number, lora_path=str(path)))

    def test_an_adapter_whose_files_change_under_its_number_is_not_shared(self):
        first = self.salts.of(self.adapter(b"one"))
        self.assertIsNotNone(first)
        self.assertEqual(self.salts.of(self.adapter(b"one", 2, "copy")), first)
        self.assertIsNone(self.salts.of(self.adapter(b"other")))

    def test_a_name_that_has_meant_two_adapters_is_not_shared_until_a_reset(self):
        first = self.adapter(b"one")
        salt = self.salts.of(first)
        # The engine's own cache goes by the name, and has KV of the first.
        second = self.adapter(b"other", 2, "other")
        self.assertIsNone(self.salts.of(second))
        self.assertIsNone(self.salts.of(first))
        self.salts.reset(b"failed", complete=False)
        self.assertIsNone(self.salts.of(second))
        self.salts.reset(b"generation", complete=True)
        self.assertNotIn(self.salts.of(second), (None, salt))
        self.assertIsNone(self.salts.of(first))

    def test_files_that_changed_under_a_number_are_not_shared_after_a_reset_either(self):
        self.salts.of(self.adapter(b"one"))
        self.salts.reset(b"generation", complete=True)
        # What the engine has loaded under the number is the old one.
        self.assertIsNone(self.salts.of(self.adapter(b"other")))

    def test_an_adapter_that_is_not_here_is_not_shared(self):
        request = self.adapter(b"one")
        request.lora_request.lora_path = "hub/adapter"
        self.assertIsNone(self.salts.of(request))

    def test_an_adapter_that_cannot_be_read_is_not_shared(self):
        path = self.folder / "empty"
        path.mkdir()
        request = self.adapter(b"one")
        request.lora_request.lora_path = str(path)
        self.assertIsNone(self.salts.of(request))
        (path / "gone.safetensors").symlink_to(self.folder / "nowhere")
        self.assertIsNone(self.salts.of(request))
        with mock.patch.object(pathlib.Path, "iterdir", side_effect=PermissionError):
            self.assertIsNone(self.salts.of(self.adapter(b"one", 3, "third")))

    def test_a_reset_finds_nothing_of_before(self):
        request = types.SimpleNamespace(lora_request=None, cache_salt=None)
        before = self.salts.of(request)
        self.salts.reset(b"generation", complete=True)
        self.assertNotEqual(self.salts.of(request), before)

    def test_a_reset_that_leaves_kv_in_the_engine_ends_all_sharing_until_one_that_does_not(self):
        request = types.SimpleNamespace(lora_request=None, cache_salt=None)
        self.salts.reset(b"failed", complete=False)
        self.assertIsNone(self.salts.of(request))
        self.salts.reset(b"generation", complete=True)
        self.assertIsNotNone(self.salts.of(request))


if __name__ == "__main__":
    unittest.main()
