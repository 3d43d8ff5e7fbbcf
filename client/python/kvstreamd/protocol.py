"""The messages of kvstream.v1, from the descriptor set that setup.py compiles.

The pool is this package's own: it cannot meet another package's descriptors of the same names.
Messages are protobuf's; proto/kvstream/v1 says what their fields mean.
"""

import os
from importlib import resources
from typing import Any

# protobuf ships no types.
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTOCOL_VERSION = 1
PACKAGE = "kvstream.v1"
_DESCRIPTORS = "kvstream_v1.binpb"


def _load_pool() -> descriptor_pool.DescriptorPool:
    file = resources.files(__package__).joinpath(_DESCRIPTORS)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise ImportError(f"{os.fspath(str(file))} is missing: install the package (pip install), "
                          "which compiles the protocol") from None
    pool = descriptor_pool.DescriptorPool()
    # Imported files come first.
    for each in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(each.SerializeToString())
    return pool


POOL = _load_pool()


def message(name: str) -> Any:
    """The class of a message of the package, such as "ReadStep"."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def enum_numbers(name: str) -> dict[str, int]:
    """The names and numbers of an enumeration, such as "Code"."""
    return {v.name: v.number for v in POOL.FindEnumTypeByName(f"{PACKAGE}.{name}").values}


ClientMessage = message("ClientMessage")
ServerMessage = message("ServerMessage")
HandoffRequest = message("HandoffRequest")
HandoffReply = message("HandoffReply")
NamespaceMessage = message("Namespace")
RegisterNamespaceRequest = message("RegisterNamespaceRequest")
RegisterNamespaceReply = message("RegisterNamespaceReply")
RegisterMemoryRequest = message("RegisterMemoryRequest")
UnregisterMemoryRequest = message("UnregisterMemoryRequest")
UnregisterMemoryReply = message("UnregisterMemoryReply")
LookupRequest = message("LookupRequest")
LookupReply = message("LookupReply")
GetStatusRequest = message("GetStatusRequest")
Status = message("Status")
