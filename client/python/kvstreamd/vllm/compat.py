"""All that depends on vLLM's release. What is asked is what the installed package has, never its
version: releases are patched, and forks keep older numbers.

vLLM is imported where it is needed, so that the rest can be tested without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple


def release() -> str:
    """vLLM's release up to its minor number. Between those the meaning of a block's bytes changes
    now and then, with no sign of it in shapes or strides."""
    import vllm
    return ".".join(vllm.__version__.split(".")[:2])


def hash_seed_is_fixed(vllm_config: Any) -> bool:
    """Whether block hashes of other processes equal this one's."""
    if os.environ.get("PYTHONHASHSEED") is not None:
        return True
    from vllm.v1.core import kv_cache_utils
    resolve = getattr(kv_cache_utils, "resolve_none_hash_seed", None)
    if resolve is None:
        return False
    # Newer releases need a seed only for hashes that are not cryptographic.
    from vllm.utils.hashing import get_hash_fn_by_name
    function = get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
    return resolve(function) == resolve(function)


def unsupported_group(group: Any) -> str:
    """Why a KV group cannot be kept chunk by chunk; empty when it can. Windows and states drop, or
    overwrite, what earlier chunks need; vLLM gives sliding windows as full attention while its
    hybrid KV manager is off."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
    for each in _specs(group):
        # Not subclasses: they are what is special about a few models.
        if type(each) not in (FullAttentionSpec, MLAAttentionSpec):
            return f"{type(each).__name__} of {group.layer_names[0]}"
    return ""


def is_replicated(group: Any) -> bool:
    """Whether all tensor parallel ranks hold the same KV."""
    from vllm.v1.kv_cache_interface import MLAAttentionSpec
    return all(isinstance(each, MLAAttentionSpec) for each in _specs(group))


def _specs(group: Any) -> list[Any]:
    """The specifications of a group's layers; one where they are all alike."""
    spec = group.kv_cache_spec
    return list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]


def transfer_results(sent: set[str], received: set[str], failed: set[str]) -> Any:
    """A step's transfers as releases from about 0.29 on take them, and they alone ask."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    return KVConnectorTransferResults(finished_sending=sent, finished_recving=received,
                                      failed_recving=failed)


def context_parallel(vllm_config: Any) -> int:
    """Ranks that a sequence's tokens are spread over."""
    parallel = vllm_config.parallel_config
    return max(getattr(parallel, "decode_context_parallel_size", 1),
               getattr(parallel, "prefill_context_parallel_size", 1))


def preferred_layout() -> str | None:
    """The KV layout to ask for: blocks outermost, so that a block of all layers is one run. Older
    releases ask for it by `prefer_cross_layer_blocks`, and take none by this name."""
    try:
        from vllm.v1.kv_cache_layout import KVCacheLayout
    except ImportError:
        return None
    from vllm.platforms import current_platform
    # Of CPU workers the KV is copied in any case, and their attention knows one layout.
    return None if current_platform.is_cpu() else KVCacheLayout.BLNHC.name


def named_blocks(request: Any) -> list[bytes]:
    """The hashes of a request's blocks that others may be told of."""
    hashes = request.block_hashes
    limit = getattr(request, "num_publishable_block_hashes", None)
    return hashes if limit is None else hashes[:limit]


class Scheduled(NamedTuple):
    """A request in a step: its new blocks, whether they are all it has, and how many tokens it had
    before the step."""

    request_id: str
    blocks: list[int]
    replaces: bool
    computed_tokens: int


def scheduled_requests(output: Any) -> Iterator[Scheduled]:
    """The requests of a SchedulerOutput, with the blocks of the first KV group."""
    for new in output.scheduled_new_reqs:
        yield Scheduled(new.req_id, list(new.block_ids[0]), True, new.num_computed_tokens)
    cached = output.scheduled_cached_reqs
    for request_id, blocks, computed in zip(cached.req_ids, cached.new_block_ids,
                                            cached.num_computed_tokens):
        yield Scheduled(request_id, list(blocks[0]) if blocks else [],
                        request_id in cached.resumed_req_ids, computed)


class LocalCache:
    """The engine's own prefix cache, as far as it can be asked; else it has nothing."""

    def __init__(self, block_pool: Any = None):
        self._pool = block_pool

    def has(self, block_hash: Any) -> bool:
        """Whether a block of the first KV group is there."""
        find = getattr(self._pool, "get_cached_block", None)
        return find is not None and find(block_hash, [0]) is not None

    def is_empty(self) -> bool:
        """Whether no request has blocks, so that a reset of it, which is refused else, has left
        nothing."""
        free = getattr(self._pool, "get_num_free_blocks", None)
        # One block is never given to anybody.
        return free is not None and free() == self._pool.num_gpu_blocks - 1
