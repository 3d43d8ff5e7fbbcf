"""A plugin for pytest: vLLM's own unit tests of connectors meet KVStreamConnector.

A config that names no connector, or the example one, gets ours, and a model that is on the spot.
Where a test replaces the scheduler's connector by a mock to say what matches, the mock answers what
the test does not set with what ours answers.
"""

import functools
import importlib
import os
import sys
from unittest import mock

EXAMPLES = (None, "ExampleConnector", "TestExampleConnector")


def pytest_configure(config):
    """Changes the helpers before a test module takes them."""
    del config
    sys.path.insert(0, os.environ["KVSTREAM_UPSTREAM"])
    utils = importlib.import_module("tests.v1.kv_connector.unit.utils")
    utils.create_vllm_config = with_ours(utils.create_vllm_config)
    # Older releases' tests make their mocks themselves.
    if hasattr(utils, "create_mock_connector"):
        utils.create_mock_connector = functools.partial(mock_of_ours, utils,
                                                        utils.create_mock_connector)


def with_ours(create_vllm_config):
    """The helper, with our connector where a test asks for none in particular."""
    @functools.wraps(create_vllm_config)
    def create(*arguments, **named):
        if not arguments:
            named.setdefault("model", os.environ["KVSTREAM_MODEL"])
        if named.get("kv_connector") in EXAMPLES:
            named.update(kv_connector="KVStreamConnector",
                         kv_connector_module_path="kvstreamd.vllm", kv_connector_extra_config={})
            named.setdefault("kv_role", "kv_both")
        config = create_vllm_config(*arguments, **named)
        create.last = config
        return config
    create.last = None
    return create


def mock_of_ours(utils, create_mock_connector):
    """The helper's mock, with ours behind it."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from kvstreamd.vllm import KVStreamConnector
    made = create_mock_connector()
    real = KVStreamConnector(utils.create_vllm_config.last, KVConnectorRole.SCHEDULER,
                             utils.make_kv_cache_config(block_size=16))
    wrapping = mock.Mock(wraps=real)
    wrapping.get_external_cache_hit_sources.side_effect = (
        made.get_external_cache_hit_sources.side_effect)
    # What the test says matches is none of ours.
    wrapping.update_state_after_alloc.side_effect = (
        lambda request, blocks, tokens: real.update_state_after_alloc(request, blocks, 0))
    return wrapping
