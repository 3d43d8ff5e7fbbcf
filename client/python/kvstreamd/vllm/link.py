"""The way to the daemon, which may be away: then nothing is found and nothing is kept.

Thread rule: any thread. A thread of its own connects again while the daemon is away; no other waits
for it. Ownership: owns the client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from kvstreamd import errors
from kvstreamd.client import Client
from kvstreamd.identity import Namespace, NamespaceDescription
from kvstreamd.memory import HostBuffer
from kvstreamd.regions import Region
from kvstreamd.vllm.options import Options

logger = logging.getLogger("vllm.kvstreamd")

# Between attempts to connect, seconds.
RETRY_S = 1.0


class Ready(NamedTuple):
    """What there is while the daemon is there."""

    client: Client
    namespace: Namespace
    buffer: HostBuffer | None
    region: Region | None = None


class _Wanted(NamedTuple):
    description: NamespaceDescription
    buffer_bytes: int
    # None once it has opened what there is.
    open_region: Callable[[Client], Region | None] | None


class Link:
    """Connects as `client_name`, now if the daemon is there. What to register is said by `want`,
    once. `on_lost` is called by the thread that connects, after a session has been lost."""

    def __init__(self, options: Options, client_name: str, on_lost: Callable[[], None]):
        self._options = options
        self._name = client_name
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._wanted: _Wanted | None = None
        self._region: Region | None = None
        self._ready: Ready | None = None
        self._stop = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="kvstreamd-link", daemon=True)
        self._attempt()
        self._thread.start()

    def want(self, description: NamespaceDescription, buffer_bytes: int,
             open_region: Callable[[Client], Region | None] | None = None) -> None:
        """Registers the namespace, what `open_region` opens, and, unless 0, a host buffer; again
        whenever the daemon comes back. What fails, `open_region` among it, is tried again by the
        link's thread, and until then there is nothing. Blocks for a few calls when the daemon is
        there."""
        with self._lock:
            self._wanted = _Wanted(description, buffer_bytes, open_region)
        self._attempt()

    @property
    def ready(self) -> Ready | None:
        """The client and what is registered; None while the daemon is away."""
        ready = self._ready
        return None if ready is None or ready.client.lost else ready

    def close(self) -> None:
        """Ends the session and the thread."""
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._ready = None
            if self._client is not None:
                try:
                    self._client.close()
                except Exception as error:  # Of whatever kind: the engine ends as it should.
                    logger.warning("kvstreamd: %s", error)

    def _run(self) -> None:
        while not self._stop.wait(RETRY_S):
            self._attempt()

    def _attempt(self) -> None:
        """Connects and registers, as far as that is not done."""
        with self._lock:
            try:
                if self._client is None:
                    self._client = Client(self._options.socket, client_name=self._name,
                                          handoff_socket=self._options.handoff_socket)
                    self._back("connected")
                elif self._client.lost:
                    if not self._warned:
                        self._on_lost()
                        self._away(errors.SessionLost("the session was lost"))
                    self._client.reconnect()
                    self._back("connected again")
                if self._ready is None and self._wanted is not None:
                    self._ready = self._register(self._client, self._wanted)
                    self._warned = False
            except Exception as error:  # Of whatever kind: it is tried again.
                self._away(error)

    def _register(self, client: Client, wanted: _Wanted) -> Ready:
        namespace = client.register_namespace(wanted.description)
        if wanted.open_region is not None:
            self._region = wanted.open_region(client)
            # Should the buffer fail, it is there already.
            self._wanted = wanted._replace(open_region=None)
        buffer = client.create_host_buffer(wanted.buffer_bytes) if wanted.buffer_bytes else None
        return Ready(client, namespace, buffer, self._region)

    def _away(self, error: Exception) -> None:
        if not self._warned:
            logger.warning("kvstreamd at %s is away, so that nothing is found or kept: %s",
                           self._options.socket, error)
        self._warned = True

    def _back(self, how: str) -> None:
        logger.info("kvstreamd at %s: %s", self._options.socket, how)
        self._warned = False
