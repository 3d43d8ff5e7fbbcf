"""The connector in a worker: moves the KV of one rank as the scheduler's plans say.

Thread rule: the engine's thread. Ownership: owns the link, and what is registered by it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading

from kvstreamd.client import Client
from kvstreamd.regions import Region
from kvstreamd.vllm.layout import KVLayout
from kvstreamd.vllm.link import Link, Ready
from kvstreamd.vllm.loads import LoadEnd, Loads
from kvstreamd.vllm.metadata import StepPlan, WorkerShape
from kvstreamd.vllm.counters import Counters
from kvstreamd.vllm.mover import Mover, open_region
from kvstreamd.vllm.options import Options
from kvstreamd.vllm.order import StreamOrder
from kvstreamd.vllm.stores import Stores

logger = logging.getLogger("vllm.kvstreamd")

# Slots each way: with fewer a load of many chunks would take them one by one.
_SLOTS_MIN = 2


@dataclasses.dataclass
class Transfers:
    """What ended in a step."""

    sent: set[str]
    received: set[str]
    # Requests of which nothing was loaded, and blocks of those of which not all was.
    failed: set[str]
    bad_blocks: set[int]


class Worker:
    """Rank `rank` of the tensor parallel ranks; `replicated` when all hold the same KV. `in_place`:
    whether the KV's memory stays mapped, so that the daemon may open it."""

    def __init__(self, options: Options, name: str, rank: int, replicated: bool, *,
                 in_place: bool = True):
        self._options = options
        self._in_place = in_place
        self._shard = 0 if replicated else rank
        # Of what all ranks hold, one stores.
        self._stores_here = not replicated or rank == 0
        self._counters = Counters()
        self._lost = threading.Event()
        self._link = Link(options, name, self._lost.set)
        self._layout: KVLayout | None = None
        self._order: StreamOrder | None = None
        self._loads: Loads | None = None
        self._stores: Stores | None = None
        self._chunk_blocks = 0
        self._waiting_plans: list[StepPlan] = []
        self._held: set[str] = set()
        self._ended_jobs: list[int] = []
        self._failed_loads: dict[str, int] = {}

    # ------------------------------------------------------------ the start

    def register(self, layout: KVLayout) -> None:
        """Takes the engine's KV."""
        self._layout = layout
        self._order = StreamOrder(layout.device)

    @property
    def shape(self) -> WorkerShape | None:
        """What the scheduler needs to know; None before `register`."""
        return None if self._layout is None else self._layout.shape()

    def _want(self, plan: StepPlan) -> None:
        """Registers the scheduler's namespace, which comes with the first plan that has work."""
        if plan.namespace is None or self._chunk_blocks or self._layout is None:
            return
        self._chunk_blocks = plan.namespace.chunk_tokens // plan.namespace.page_tokens
        self._link.want(plan.namespace, 2 * self._slot_count() * self._chunk_bytes(),
                        self._open_region)

    def _open_region(self, client: Client) -> Region | None:
        assert self._layout is not None
        return open_region(client, self._layout) if self._in_place else None

    def _chunk_bytes(self) -> int:
        assert self._layout is not None
        return self._layout.block_bytes * self._chunk_blocks

    def _slot_count(self) -> int:
        half = (self._options.host_buffer_mib << 20) // 2
        return max(half // self._chunk_bytes(), _SLOTS_MIN)

    def _ready(self) -> Ready | None:
        ready = self._link.ready
        if ready is not None and self._loads is None:
            assert self._layout is not None and self._order is not None
            mover = Mover(self._layout, ready, self._chunk_blocks, self._slot_count())
            if self._layout.device.type == "cuda" and mover.region is None:
                self._counters.add("copying_ranks")
            self._loads = Loads(mover, self._shard, self._options.load_deadline_ms,
                                self._counters, self._order)
            self._stores = Stores(mover, self._shard, self._options, self._counters, self._order)
        return ready

    # ------------------------------------------------------------ a step

    def before_forward(self, plan: StepPlan) -> None:
        """Waits for stores whose blocks this step may write."""
        if plan.preempted and self._stores is not None:
            self._stores.wait_for(plan.preempted)

    def start_loads(self, plan: StepPlan) -> None:
        """Begins the step's loads; never waits for them."""
        self._want(plan)
        # Here, since releases skip `start_stores` in steps that compute nothing.
        self._held |= plan.held
        if not plan.loads:
            return
        ready = self._ready()
        if self._loads is not None:
            self._loads.begin(plan.loads, ready)
            return
        # The daemon was never there.
        self._waiting_plans.append(plan)
        self._counters.add("loads", len(plan.loads))
        self._counters.add("load_failures", len(plan.loads))

    def start_stores(self, plan: StepPlan) -> None:
        """Begins the stores of what the step has completed."""
        self._want(plan)
        if not plan.stores:
            return
        ready = self._ready()
        if self._stores is not None and self._stores_here:
            self._stores.begin(plan.stores, ready)
            return
        self._ended_jobs += [job.job_id for job in plan.stores]
        if self._stores_here:
            self._counters.add("dropped_chunks", sum(len(job.chunks) for job in plan.stores))

    def transfers(self) -> Transfers:
        """What has ended since the last call."""
        ended: list[LoadEnd] = []
        for plan in self._waiting_plans:
            for job in plan.loads:
                blocks = {block for chunk in job.chunks for block in chunk.blocks}
                skipped = job.chunks[0].blocks[:job.skip_blocks]
                ended.append(LoadEnd(job.request_id, 0, blocks - set(skipped)))
        self._waiting_plans = []
        if self._loads is not None:
            ended += self._loads.collect()
            self._loads.pump(self._link.ready)
        if self._stores is not None:
            self._ended_jobs += self._stores.collect()
        sent = {request for request in self._held
                if self._stores is None or not self._stores.running_for((request,))}
        self._held -= sent
        bad = [end for end in ended if end.bad_blocks]
        self._failed_loads.update({end.request_id: end.good_chunks for end in bad})
        return Transfers(sent, {end.request_id for end in ended},
                         {end.request_id for end in bad if not end.good_chunks},
                         {block for end in bad for block in end.bad_blocks})

    def take_report(self) -> tuple[list[int], dict[str, int]]:
        """Since the last call: the numbers of the store jobs whose blocks are free; the requests of
        which a load has failed, and their leading chunks that are valid."""
        report = self._ended_jobs, self._failed_loads
        self._ended_jobs, self._failed_loads = [], {}
        return report

    def take_stats(self) -> dict[str, int | float]:
        """What was counted since the last call."""
        if self._lost.is_set():
            self._lost.clear()
            self._counters.add("connections_lost")
        return self._counters.take()

    def close(self) -> None:
        """Ends the session; what runs ends with it."""
        if self._order is not None:
            self._order.close()
        self._link.close()
