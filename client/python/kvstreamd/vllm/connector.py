"""KVStreamConnector: what vLLM loads. Translates its calls; scheduler.py and worker.py do the work.

Loads are asynchronous alone: vLLM gives a request its blocks, goes on with others, and comes back
when its KV is there. vLLM computes what did not come (`kv_load_failure_policy` "recompute").
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1,
                                                               KVConnectorHandshakeMetadata,
                                                               KVConnectorMetadata,
                                                               KVConnectorRole,
                                                               KVConnectorWorkerMetadata)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from kvstreamd.vllm import compat, fingerprint
from kvstreamd.vllm.keys import Shape
from kvstreamd.vllm.layout import KVLayout, cross_layer
from kvstreamd.vllm.metadata import StepPlan, WorkerShape
from kvstreamd.vllm.metrics import ConnectorPromMetrics, ConnectorStats
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.scheduler import Scheduler
from kvstreamd.vllm.worker import Worker

logger = logging.getLogger("vllm.kvstreamd")


class PlanMetadata(StepPlan, KVConnectorMetadata):
    """A step's plan, as vLLM carries it."""


@dataclasses.dataclass
class ShapeMetadata(KVConnectorHandshakeMetadata):
    """What a worker tells the scheduler at the start."""

    shape: WorkerShape


@dataclasses.dataclass
class ReportMetadata(KVConnectorWorkerMetadata):
    """What workers tell the scheduler each step."""

    # Store jobs whose blocks are free, and on how many ranks.
    job_ranks: dict[int, int]
    # Requests of which a load has failed, and how many leading chunks are valid on all ranks.
    failed_loads: dict[str, int]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, ReportMetadata)
        ranks, failed = dict(self.job_ranks), dict(self.failed_loads)
        for job_id, count in other.job_ranks.items():
            ranks[job_id] = ranks.get(job_id, 0) + count
        for request_id, good in other.failed_loads.items():
            failed[request_id] = min(good, failed.get(request_id, good))
        return ReportMetadata(ranks, failed)


def check_supported(vllm_config: Any, kv_cache_config: Any) -> None:
    """ValueError, with the setting's name, for what the connector cannot keep."""
    groups = kv_cache_config.kv_cache_groups
    problems = []
    for number, group in enumerate(groups):
        if reason := compat.unsupported_group(group):
            problems.append(f"KV group {number} is not supported: {reason}")
    if len(groups) != 1:
        problems.append(f"{len(groups)} KV groups: one group of full attention is supported")
    parallel = vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        problems.append("pipeline_parallel_size above 1 is not supported")
    if getattr(parallel, "nnodes", 1) > 1:
        problems.append("an engine across nodes is not supported: each node's daemon has a part")
    if compat.context_parallel(vllm_config) > 1:
        problems.append("context parallelism is not supported: a block's tokens lie on many ranks")
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.method not in ("ngram", "ngram_gpu", "suffix"):
        problems.append(f"speculative method {speculative.method} is not supported: its model has "
                        "KV of its own")
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        problems.append("calculate_kv_scales is not supported: scales differ between starts")
    if problems:
        raise ValueError("KVStreamConnector: " + "; ".join(problems))


class KVStreamConnector(KVConnectorBase_V1):
    """vLLM's connector to the kvstreamd of this node."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any):
        super().__init__(vllm_config, role, kv_cache_config)
        check_supported(vllm_config, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._options = Options.parse(transfer.kv_connector_extra_config)
        self._group = kv_cache_config.kv_cache_groups[0]
        block_tokens = self._group.kv_cache_spec.block_size
        self._shape = Shape(block_tokens, block_tokens,
                            self._options.chunk_tokens_for(block_tokens))
        self._replicated = compat.is_replicated(self._group)
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        # Blocks whose load has failed, until vLLM asks for them.
        self._bad_blocks: set[int] = set()
        name = f"vllm-{vllm_config.parallel_config.data_parallel_rank}"
        if role == KVConnectorRole.SCHEDULER:
            self._check_hashes(vllm_config)
            model = vllm_config.model_config
            self._weights = fingerprint.weights_fingerprint(
                model.model, model.revision, str(vllm_config.load_config.load_format),
                self._options.weights_fingerprint)
            self._scheduler = Scheduler(self._options, f"{name}/scheduler", self._shape,
                                        self._ranks, loads=transfer.is_kv_consumer,
                                        stores=transfer.is_kv_producer)
        else:
            if transfer.kv_load_failure_policy != "recompute":
                logger.warning("kvstreamd: kv_load_failure_policy is %s: requests fail when a load "
                               "does; set it to recompute", transfer.kv_load_failure_policy)
            rank = get_tensor_model_parallel_rank()
            # Sleep takes the KV's memory away, and waking gives it other memory.
            in_place = not getattr(vllm_config.model_config, "enable_sleep_mode", False)
            self._worker = Worker(self._options, f"{name}/rank{rank}", rank, self._replicated,
                                  in_place=in_place)

    def _check_hashes(self, vllm_config: Any) -> None:
        """ValueError where restarts could find nothing, unless that is allowed."""
        if compat.hash_seed_is_fixed(vllm_config):
            return
        text = ("PYTHONHASHSEED is not set, so that block hashes differ between processes: nothing "
                "would be found after a restart, or by another engine")
        if not self._options.allow_random_hash_seed:
            raise ValueError(f"KVStreamConnector: {text}; set it, as PYTHONHASHSEED=0, for all "
                             "engines that share KV, or allow_random_hash_seed")
        logger.warning("kvstreamd: %s", text)

    # ------------------------------------------------------------ class level

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: what was not stored is a miss."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        return compat.preferred_layout()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ConnectorStats:
        return ConnectorStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]
                           ) -> ConnectorPromMetrics:
        return ConnectorPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ------------------------------------------------------------ scheduler

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        assert self._scheduler is not None
        shapes = [each.shape for each in metadata.values()]
        if len(shapes) != self._ranks or any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"KVStreamConnector: the {len(shapes)} of {self._ranks} ranks do not "
                             f"lay their KV out alike: {shapes}")
        release = "" if self._options.share_across_versions else compat.release()
        self._scheduler.use(fingerprint.describe(
            self._vllm_config, self._weights, self._shape, shapes[0],
            replicated=self._replicated, release=release))

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.bind(compat.LocalCache(gpu_block_pool))

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any,
                                   num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None
        tokens = scheduler_output.num_scheduled_tokens
        plan = self._scheduler.plan(
            [(entry, tokens[entry.request_id])
             for entry in compat.scheduled_requests(scheduler_output)],
            set(scheduler_output.preempted_req_ids or ()))
        return PlanMetadata(**vars(plan))

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        report = connector_output.kv_connector_worker_meta
        if report is not None:
            self._scheduler.released(report.job_ranks)
            self._scheduler.load_failed(report.failed_loads)

    def request_finished(self, request: Any,
                         block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        return self._scheduler.finished(request.request_id), None

    def reset_cache(self) -> bool | None:
        assert self._scheduler is not None
        return self._scheduler.reset()

    # ------------------------------------------------------------ worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        assert self._worker is not None
        self._worker.register(KVLayout(kv_caches, self._kv_cache_config.num_blocks))

    def register_cross_layers_kv_cache(self, kv_cache: torch.Tensor, attn_backend: Any) -> None:
        assert self._worker is not None
        self._worker.register(cross_layer(kv_cache, self._kv_cache_config.num_blocks))

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        assert self._worker is not None
        shape = self._worker.shape
        return None if shape is None else ShapeMetadata(shape)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert self._worker is not None
        self._worker.before_forward(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._worker is not None
        self._worker.start_loads(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request runs once all of its layers are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any,
                      **kwargs: Any) -> None:
        """Nothing: chunks have all layers."""

    def wait_for_save(self) -> None:
        assert self._worker is not None
        self._worker.start_stores(self._get_connector_metadata())

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Newer releases' form: requests of which nothing was loaded are named as a whole."""
        assert self._worker is not None
        ended = self._worker.transfers()
        self._bad_blocks = ended.bad_blocks
        return compat.transfer_results(ended.sent, ended.received, ended.failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Older releases' form: what failed is named by its blocks."""
        assert self._worker is not None
        ended = self._worker.transfers()
        self._bad_blocks = ended.bad_blocks
        return ended.sent or None, ended.received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        assert self._worker is not None
        ended_jobs, failed_loads = self._worker.take_report()
        if not ended_jobs and not failed_loads:
            return None
        return ReportMetadata({job_id: 1 for job_id in ended_jobs}, failed_loads)

    # ------------------------------------------------------------ both

    def get_kv_connector_stats(self) -> ConnectorStats | None:
        side = self._scheduler or self._worker
        assert side is not None
        counts = side.take_stats()
        return ConnectorStats(data=counts) if counts else None

    def shutdown(self) -> None:
        side = self._scheduler or self._worker
        if side is not None:
            side.close()
