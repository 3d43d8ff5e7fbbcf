"""kvstreamd: the Python client of the KV cache daemon of the same name. See Client."""

from kvstreamd import errors
from kvstreamd.client import Client
from kvstreamd.errors import Code, KVStreamError
from kvstreamd.identity import (Group, Namespace, NamespaceDescription, fingerprint_of, salt_of)
from kvstreamd.memory import HostBuffer, HostRange
from kvstreamd.operations import (Operation, ReadOperation, RequestOutcome, StoredChunk,
                                  StoreOperation)
from kvstreamd.regions import BlockLayout, DeviceBlocks, Region, block_layout
from kvstreamd.requests import ChunkAt, LookupResult, Mode, ReadRequest

__all__ = [
    "BlockLayout", "ChunkAt", "Client", "Code", "DeviceBlocks", "Group", "HostBuffer", "HostRange",
    "KVStreamError", "LookupResult", "Mode", "Namespace", "NamespaceDescription", "Operation",
    "ReadOperation", "ReadRequest", "Region", "RequestOutcome", "StoreOperation", "StoredChunk",
    "block_layout", "errors", "fingerprint_of", "salt_of",
]
