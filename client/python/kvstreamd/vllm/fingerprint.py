"""What tells one model's KV from another's: the namespace, and the salt of a request's adapter.

A field that is left out here is shared by models that differ in it, which is wrong bytes; one too
many is a miss.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from kvstreamd.identity import Group, NamespaceDescription, fingerprint_of, salt_of
from kvstreamd.vllm.keys import Shape
from kvstreamd.vllm.metadata import WorkerShape

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
# What makes a model's input of images and sound, and code that is the model's own.
_PREPROCESSING = ("*processor*.json", "*.py")
# vLLM's settings of the same.
_MULTIMODAL = ("mm_processor_kwargs", "media_io_kwargs", "mm_encoder_attn_dtype",
               "video_pruning_rate", "video_pruning_method")
# A hub's snapshot is named by the commit that it is of.
_SNAPSHOT = re.compile(r"/snapshots/([0-9a-f]{40})(?:/|$)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Keys of a model's config that say where it came from, and not what it computes.
_PROVENANCE = ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash")
_ROPE_BYTES_MAX = 1024
_READ_BYTES = 16 << 20


def weights_fingerprint(model: str, revision: str | None, load_format: str,
                        configured: str) -> bytes:
    """What the weights are: what the user says, a hub's commit, or the digest of every byte of a
    local model's weights. ValueError where none of these tells, with what to do."""
    if configured:
        return fingerprint_of(configured=configured)
    if load_format == "dummy":
        raise ValueError("weights of load_format dummy have no name: set weights_fingerprint in "
                         "kv_connector_extra_config")
    path = pathlib.Path(model)
    if not path.exists():
        if revision is not None and _COMMIT.fullmatch(revision):
            return fingerprint_of(commit=revision)
        raise ValueError(f"the weights of {model} may change behind its name: set revision to a "
                         "full commit, or weights_fingerprint in kv_connector_extra_config")
    snapshot = _SNAPSHOT.search(str(path.absolute()))
    if snapshot:
        return fingerprint_of(commit=snapshot.group(1))
    return fingerprint_of(files=files_digest(path, _WEIGHTS),
                          preprocessing=_digest(_matching(path, _PREPROCESSING)))


def files_digest(path: pathlib.Path, patterns: Sequence[str] = ("*",)) -> bytes:
    """The digest of a file, or of the files of a folder that match, with their names. ValueError
    where there are none."""
    files = [path] if path.is_file() else _matching(path, patterns)
    if not files:
        raise ValueError(f"{path} has no files of weights: set weights_fingerprint in "
                         "kv_connector_extra_config")
    return _digest(files)


def _matching(folder: pathlib.Path, patterns: Sequence[str]) -> list[pathlib.Path]:
    return sorted({found for pattern in patterns for found in folder.glob(pattern)
                   if found.is_file()})


def _digest(files: Sequence[pathlib.Path]) -> bytes:
    digest = hashlib.sha256()
    for file in files:
        digest.update(fingerprint_of(name=file.name, size=file.stat().st_size))
        with open(file, "rb") as opened:
            while block := opened.read(_READ_BYTES):
                digest.update(block)
    return digest.digest()


def _multimodal(model: Any) -> str:
    """What the engine is told to do with images and sound before the model sees them, as text."""
    config = getattr(model, "multimodal_config", None)
    return _canonical({name: getattr(config, name, None) for name in _MULTIMODAL})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _rope(hf_config: Any, max_model_len: int) -> str:
    """Rotary parameters as text. Some scalings choose their factors by the longest sequence."""
    parts = {name: getattr(hf_config, name, None)
             for name in ("rope_theta", "rope_scaling", "rope_parameters",
                          "max_position_embeddings", "partial_rotary_factor")}
    text = _canonical(parts)
    if any(f'"{kind}"' in text for kind in ("longrope", "su", "dynamic")):
        text = _canonical({**parts, "max_model_len": max_model_len})
    if len(text) > _ROPE_BYTES_MAX:
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    return text


def _config_digest(hf_config: Any) -> str:
    fields = {key: value for key, value in hf_config.to_dict().items() if key not in _PROVENANCE}
    return hashlib.sha256(_canonical(fields).encode()).hexdigest()


def describe(vllm_config: Any, weights: bytes, shape: Shape, worker: WorkerShape, *,
             replicated: bool, release: str) -> NamespaceDescription:
    """The namespace of an engine's KV. `release` is that of the engine, empty to share between
    releases."""
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    ranks = vllm_config.parallel_config.tensor_parallel_size
    return NamespaceDescription(
        model=pathlib.PurePath(model.model).name or model.model,
        weights_fingerprint=weights,
        kv_dtype=worker.kv_dtype,
        quantization=f"weights={model.quantization};kv={cache.cache_dtype}",
        rope=_rope(model.hf_text_config, model.max_model_len),
        layout="vllm/" + hashlib.sha256(worker.layout.encode()).hexdigest(),
        page_tokens=shape.block_tokens,
        chunk_tokens=shape.chunk_tokens,
        tensor_parallel=ranks,
        pipeline_parallel=vllm_config.parallel_config.pipeline_parallel_size,
        groups=[Group(name="full_attention",
                      chunk_bytes=worker.block_bytes * shape.chunk_blocks,
                      shards=1 if replicated else ranks, replicated=replicated)],
        extra={"engine": f"vllm {release}".strip(), "model_dtype": str(model.dtype),
               "config": _config_digest(model.hf_config),
               "multimodal": hashlib.sha256(_multimodal(model).encode()).hexdigest(),
               "hash": str(cache.prefix_caching_hash_algo)})


class Salts:
    """The salts of requests: who may share KV with whom beyond what vLLM's hashes tell apart.

    vLLM hashes an adapter's name alone, so that its own cache finds the KV of an adapter's former
    self, which a request with the new one would go on from. Here its files count, and a name that
    has meant two of them is not shared any more. Not thread-safe."""

    def __init__(self, tenant: str):
        self._tenant = tenant or None
        # Tells the KV before a reset of the cache from that after it.
        self._generation: bytes | None = None
        # Whether the engine may still have KV of before the last reset.
        self._mixed = False
        # By an adapter's number in the engine: its files' state, and their digest.
        self._adapters: dict[int, tuple[Any, bytes]] = {}
        # By an adapter's name: the digest that the engine's own KV is of; None once unknown.
        self._names: dict[str, bytes | None] = {}

    def reset(self, generation: bytes, complete: bool) -> None:
        """No KV of before is found from now on. Unless the engine has none of it left either, which
        is what `complete` says, nothing is shared until a reset that is."""
        self._generation = generation
        self._mixed = not complete
        if complete:
            self._names.clear()

    def of(self, request: Any) -> bytes | None:
        """The salt of a request of vLLM's; None where its KV may not be shared, since nothing tells
        what it is computed from."""
        if self._mixed:
            return None
        # Also in the hash of the first block; what keeps tenants apart is worth saying twice.
        cache_salt = request.cache_salt or None
        adapter = request.lora_request
        if adapter is None:
            return salt_of(tenant=self._tenant, generation=self._generation, cache_salt=cache_salt)
        digest = self._adapter(adapter)
        if self._names.setdefault(adapter.lora_name, digest) != digest:
            digest = self._names[adapter.lora_name] = None
        if digest is None:
            return None
        return salt_of(tenant=self._tenant, generation=self._generation, cache_salt=cache_salt,
                       adapter=adapter.lora_name, adapter_revision=digest)

    def _adapter(self, lora_request: Any) -> bytes | None:
        """The digest of an adapter's files; None where they are not here or have changed."""
        folder = pathlib.Path(lora_request.lora_path)
        number = lora_request.lora_int_id
        try:
            state = tuple((file.name, stat.st_size, stat.st_mtime_ns, stat.st_ino)
                          for file in sorted(folder.iterdir()) if file.is_file()
                          for stat in [file.stat()])
            if number not in self._adapters:
                self._adapters[number] = (state, files_digest(folder))
        except (OSError, ValueError):
            return None
        # What the engine has loaded is unknown once the files of one number change.
        known, digest = self._adapters[number]
        return digest if known == state else None
