"""What must come after the engine's work on the GPU: the daemon knows none of its streams.

On the CPU the forward pass is over when it returns, so that all is done at once. On a GPU a thread
waits for an event of the engine's stream, since no engine thread may wait for the GPU.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import torch


class StreamOrder:
    """Runs actions after what the engine has put on its stream, in their order."""

    def __init__(self, device: torch.device):
        self._device = device
        self._actions: queue.SimpleQueue[tuple[torch.cuda.Event, Callable[[], None]] | None]
        self._actions = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if device.type == "cuda":
            self._thread = threading.Thread(target=self._run, name="kvstreamd-order", daemon=True)
            self._thread.start()

    def after_forward(self, action: Callable[[], None]) -> None:
        """Runs the action, which must not raise, once the stream has come here; at once on the
        CPU."""
        if self._thread is None:
            action()
            return
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._actions.put((event, action))

    def close(self) -> None:
        """Runs what was given, then ends the thread."""
        if self._thread is not None:
            self._actions.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        torch.cuda.set_device(self._device)
        while (item := self._actions.get()) is not None:
            event, action = item
            event.synchronize()
            action()
