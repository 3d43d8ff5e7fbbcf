"""What the scheduler's connector knows of a request."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvstreamd.vllm.lookups import Lookup


@dataclasses.dataclass
class Tracked:
    """A request of the engine's, until it has finished."""

    request: Any
    # None: its KV may not be shared.
    salt: bytes | None
    lookup: Lookup | None = None
    # Whether it took the place of one whose answer was taken too late.
    renewed: bool = False
    # That of a load which runs, or has just ended: it has the lease.
    leased: Lookup | None = None
    # As vLLM said at last.
    local_tokens: int = 0
    # Loads that were begun since it was admitted.
    loads: int = 0
    # The first chunk of the last of them.
    load_first: int = 0
    # Its blocks, in order, while it runs.
    blocks: list[int] = dataclasses.field(default_factory=list)
    # Leading chunks that are kept, or on their way.
    stored: int = 0

    def take_blocks(self, blocks: list[int], replaces: bool) -> None:
        """Blocks that the engine has given it."""
        if replaces:
            self.blocks = list(blocks)
        else:
            self.blocks += blocks

    def preempt(self) -> None:
        """It has lost its blocks, and begins anew."""
        self.blocks = []
        self.loads = 0
        if self.lookup is not None:
            self.lookup.release()
            self.lookup = None
