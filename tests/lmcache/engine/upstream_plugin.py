"""A plugin for pytest: LMCache's own tests of native connectors meet ours.

Their mock of a connector, which begins empty, becomes a tenant of its own at the daemon.
"""

import os
import uuid

from kvstreamd import Client
from kvstreamd.lmcache import KVStreamConnector


class FreshConnector(KVStreamConnector):
    """Begins empty."""

    def __init__(self):
        super().__init__(socket=os.environ["KVSTREAMD_SOCKET"], weights_fingerprint="upstream",
                         tenant=uuid.uuid4().hex, host_buffer_mib=8, durable=True, lease_ms=0)

    def submit_batch_delete(self, keys):
        """The daemon keeps what it still has to write."""
        with Client(os.environ["KVSTREAMD_SOCKET"]) as client:
            while client.status().pool.staged_bytes:
                pass
        return super().submit_batch_delete(keys)


def pytest_collection_modifyitems(items):
    """Before the tests run, and after their modules have been read."""
    for module in {item.module for item in items}:
        mock = getattr(module, "MockNativeConnector", None)
        if mock is None:
            continue
        module.MockNativeConnector = FreshConnector
        for other in vars(module).values():
            if isinstance(other, type) and other.__bases__ == (mock,):
                other.__bases__ = (FreshConnector,)
