"""The connector of vLLM: `KVStreamConnector`, by `"kv_connector_module_path": "kvstreamd.vllm"`.

It is made where vLLM asks for it, so that what has no need of vLLM can be imported without it.
"""

from typing import Any

__all__ = ["KVStreamConnector"]


def __getattr__(name: str) -> Any:
    if name == "KVStreamConnector":
        from kvstreamd.vllm.connector import KVStreamConnector
        return KVStreamConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
