"""The way to the daemon, which may be away: then nothing is found and nothing is kept.

Thread rule: any thread. A thread of its own connects again while the daemon is away; no other waits
for it. Ownership: owns the client.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from kvstreamd import errors
from kvstreamd.client import Client
from kvstreamd.lmcache.counters import Counters
from kvstreamd.lmcache.log import logger
from kvstreamd.lmcache.options import Options
from kvstreamd.memory import PAGE_BYTES, HostBuffer

# Between attempts to connect, seconds.
RETRY_S = 1.0


class Ready(NamedTuple):
    """What there is while the daemon is there. The buffer's bytes outlive a session."""

    client: Client
    buffer: HostBuffer


class Link:
    """Connects as `client_name`, now if the daemon is there, and registers a host buffer of
    `buffer_bytes`."""

    def __init__(self, options: Options, client_name: str, buffer_bytes: int, counters: Counters):
        self._options = options
        self._name = client_name
        self._buffer_bytes = buffer_bytes
        self._counters = counters
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._ready: Ready | None = None
        self._cause: Exception = errors.Unavailable("not connected yet")
        self._away = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvstreamd-link", daemon=True)
        self._attempt()
        self._thread.start()

    @property
    def ready(self) -> Ready | None:
        """The client and the buffer; None while the daemon is away."""
        ready = self._ready
        return None if ready is None or ready.client.lost else ready

    @property
    def why_away(self) -> str:
        """What to say while it is."""
        return f"kvstreamd at {self._options.socket} is away: {self._cause}"

    def close(self) -> None:
        """Ends the session and the thread."""
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._ready = None
            if self._client is not None:
                try:
                    self._client.close()
                except errors.KVStreamError as error:
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
                elif self._client.lost:
                    self._is_away(errors.SessionLost("the session was lost"))
                    self._client.reconnect()
                elif self._ready is not None:
                    return
                if self._ready is None:
                    buffer = self._client.create_host_buffer(self._buffer_bytes)
                    # Else the first load through each page waits for the kernel to clear it.
                    buffer.array[::PAGE_BYTES] = 0
                    self._ready = Ready(self._client, buffer)
                self._away = False
                logger.info("kvstreamd at %s: connected", self._options.socket)
            except Exception as error:  # Of whatever kind: it is tried again.
                self._is_away(error)

    def _is_away(self, error: Exception) -> None:
        self._cause = error
        if self._away:
            return
        self._away = True
        if self._ready is not None:
            self._counters.add("connections_lost")
        logger.warning("%s; nothing is found or kept until it is back", self.why_away)
