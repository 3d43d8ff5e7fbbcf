"""What names KV bytes: the namespace of a model, the salt of a request, digests for fingerprints.

Whatever shapes the bytes belongs in one of them. What is left out is shared: two adapters without
a salt of their own would read each other's KV.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from kvstreamd import errors
from kvstreamd.memory import Binding, Bound
from kvstreamd.protocol import NamespaceMessage

Part = str | bytes | int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """One KV group of a model, in the engine's order."""

    # Bytes of one chunk of one shard.
    chunk_bytes: int
    name: str = ""
    # Over how many ranks a chunk is sharded.
    shards: int = 1
    # All ranks hold the same bytes (MLA): one copy serves all. Then `shards` is 1.
    replicated: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamespaceDescription:
    """All that shapes a model's KV bytes: Namespace in types.proto, field by field. Descriptions
    that differ in any field share nothing."""

    model: str
    # Digest or revision of the weights, such as fingerprint_of(...).
    weights_fingerprint: bytes
    kv_dtype: str
    # The layout of a chunk's bytes, in any canonical text.
    layout: str
    chunk_tokens: int
    groups: Sequence[Group]
    quantization: str = ""
    rope: str = ""
    # Bytes, outermost first.
    strides: Sequence[int] = ()
    page_tokens: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    # Bytes; 0 means the daemon's default.
    segment_bytes: int = 0
    extra: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_message(self) -> Any:
        """The protocol's message. InvalidArgument for a value of the wrong type or range."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        fields["groups"] = [dataclasses.asdict(group) for group in self.groups]
        fields["extra"] = dict(self.extra)
        try:
            return NamespaceMessage(**fields)
        except (TypeError, ValueError) as error:
            raise errors.InvalidArgument(f"describe namespace {self.model}: {error}") from None


class Namespace(Bound):
    """A registered description. Made by Client.register_namespace."""

    # 16 bytes: the same for the same description, on every node with the same segment size.
    id: bytes = b""
    # The segment size in force, bytes.
    segment_bytes: int = 0

    def __init__(self, description: NamespaceDescription,
                 local_shards: Mapping[int, Sequence[int]]):
        self.description = description
        # Shards of each group whose ranks run on this node; empty means all.
        self.local_shards = {group: tuple(shards) for group, shards in local_shards.items()}

    def bind(self, session: object, reply: Any) -> None:
        """Takes what a RegisterNamespaceReply of a session says."""
        self.id, self.segment_bytes = reply.namespace_id, reply.segment_bytes
        self.binding = Binding(session, 0)

    def __repr__(self) -> str:
        return f"Namespace({self.description.model}, {self.id.hex()})"


def fingerprint_of(**parts: Part) -> bytes:
    """A digest, 32 bytes, of named parts. Parts that are None count as absent. Order does not
    matter; names, types and lengths do, so that no two different sets of parts are alike."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        value = parts[name]
        if value is None:
            continue
        # bool is an int, and would be one silently.
        if isinstance(value, bool) or not isinstance(value, (str, bytes, int)):
            raise errors.InvalidArgument(
                f"digest {name}: {type(value).__name__} is not str, bytes or int")
        kind = {str: b"s", bytes: b"b", int: b"i"}[type(value)]
        data = value if isinstance(value, bytes) else str(value).encode()
        for piece in (name.encode(), kind, data):
            digest.update(len(piece).to_bytes(8, "little"))
            digest.update(piece)
    return digest.digest()


def salt_of(*, tenant: Part = None, adapter: Part = None, adapter_revision: Part = None,
            **more: Part) -> bytes:
    """The salt of a request: 32 bytes, or empty where no part is given. All that must not share KV
    with others goes in: the tenant, the adapter (LoRA) with what tells two of one name apart, an
    engine's cache salt. InvalidArgument for a revision without an adapter."""
    if adapter is None and adapter_revision is not None:
        raise errors.InvalidArgument("make salt: an adapter's revision without the adapter")
    parts = {"tenant": tenant, "adapter": adapter, "adapter_revision": adapter_revision, **more}
    if all(value is None for value in parts.values()):
        return b""
    return fingerprint_of(**parts)
