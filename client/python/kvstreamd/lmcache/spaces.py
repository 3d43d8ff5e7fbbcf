"""Namespaces, one for each model and size of objects, and salts, which tell the rest apart.

An object's size is part of its identity: one of another size is another object, so that none is
ever found short. Ranks and groups are in the salt, since a daemon has few namespaces (256) and a
model may have hundreds of both. Thread rule: any thread.
"""

from __future__ import annotations

import importlib.metadata
import threading

from kvstreamd import errors
from kvstreamd.client import Client
from kvstreamd.identity import Group, Namespace, NamespaceDescription, fingerprint_of, salt_of
from kvstreamd.lmcache.names import Space
from kvstreamd.lmcache.options import Options

# Of one connector: models and sizes. The daemon has a limit, too.
NAMESPACES_MAX = 256


def release() -> str:
    """LMCache's, without what its patches change; empty where it is not installed."""
    try:
        return ".".join(importlib.metadata.version("lmcache").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        return ""


def describe(options: Options, model: str, nbytes: int, layout: str = "object"
             ) -> NamespaceDescription:
    """The namespace of a model's objects of `nbytes`."""
    engine = f"lmcache {'*' if options.share_across_versions else release()}"
    return NamespaceDescription(
        model=model,
        weights_fingerprint=fingerprint_of(configured=options.weights_fingerprint),
        kv_dtype="as LMCache's",
        layout=f"lmcache/{layout}",
        chunk_tokens=options.chunk_tokens,
        groups=[Group(chunk_bytes=nbytes, name="objects")],
        extra={"engine": engine, "engine_text": fingerprint_of(text=options.engine).hex()})


def salt_for(options: Options, space: Space, cache_salt: str = "") -> bytes:
    """What keeps objects from those of other ranks, groups and tenants."""
    return salt_of(tenant=options.tenant or None, cache_salt=cache_salt or None,
                   **dict(space.parts))


class Spaces:
    """What has been registered."""

    def __init__(self, options: Options):
        self.options = options
        self._lock = threading.Lock()
        self._namespaces: dict[tuple[str, int, str], Namespace] = {}

    def namespace(self, client: Client, model: str, nbytes: int, layout: str = "object"
                  ) -> Namespace:
        """The handle; registers what is new, which blocks for a call. Raises as
        Client.register_namespace, and ResourceExhausted past NAMESPACES_MAX."""
        key = (model, nbytes, layout)
        with self._lock:
            known = self._namespaces.get(key)
            if known is not None:
                return known
            if len(self._namespaces) >= NAMESPACES_MAX:
                raise errors.ResourceExhausted(
                    f"register namespace {model}: {NAMESPACES_MAX} are registered already")
        made = client.register_namespace(describe(self.options, model, nbytes, layout))
        with self._lock:
            return self._namespaces.setdefault(key, made)
