"""Host buffers: sealed shared memory between this process and the daemon.

A buffer is this process's own memfd, so its bytes and views outlive a session: a reconnect offers
the same memory to the new one.

Thread rule: any thread; the bytes are the caller's to guard. Ownership: a buffer owns its
descriptor; the mapping lives as long as any view of it.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvstreamd import errors

if TYPE_CHECKING:
    import torch

PAGE_BYTES = 4096
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Binding(NamedTuple):
    """What a session calls a buffer or a region. Another session's number could name other memory,
    so that a number never travels without its session."""

    session: object
    number: int


class Bound:
    """What is registered with one session at a time."""

    # Set by who registers it.
    binding: Binding | None = None

    def number_in(self, session: Any) -> int:
        """Its number in this session. FailedPrecondition when it is not registered there;
        SessionLost when the session has ended, since another may have taken its place."""
        binding = self.binding
        if binding is None or binding.session is not session:
            session.check()
            raise errors.FailedPrecondition(f"use {self}: it is not registered with this session")
        return binding.number


class HostBuffer(Bound):
    """`nbytes` of zeroed shared memory, rounded up to 4096. Made by Client.create_host_buffer."""

    def __init__(self, nbytes: int):
        if nbytes <= 0:
            raise errors.InvalidArgument(f"make host buffer: {nbytes} bytes")
        self.nbytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        try:
            self.fd = os.memfd_create("kvstreamd-host-buffer",
                                      os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            weakref.finalize(self, os.close, self.fd)
            os.ftruncate(self.fd, self.nbytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, self.nbytes)
        except OSError as error:
            raise errors.from_os(error, f"make host buffer of {self.nbytes} bytes") from error

    def __repr__(self) -> str:
        return f"HostBuffer({self.nbytes} bytes)"

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """All of it as bytes, shape (nbytes,); shares the memory."""
        return np.frombuffer(self._map, dtype=np.uint8)

    def numpy(self, dtype: npt.DTypeLike, shape: tuple[int, ...],
              offset: int = 0) -> npt.NDArray[Any]:
        """A C-contiguous view of `shape` from byte `offset`. InvalidArgument where it does not lie
        in the buffer."""
        kind = np.dtype(dtype)
        self._check(offset, math.prod(shape) * kind.itemsize)
        return np.ndarray(shape, dtype=kind, buffer=self._map, offset=offset)

    def torch(self, dtype: "torch.dtype", shape: tuple[int, ...],
              offset: int = 0) -> "torch.Tensor":
        """As `numpy`, a CPU tensor. Needs PyTorch."""
        import torch  # An extra: only who asks for tensors needs it.
        count = math.prod(shape)
        self._check(offset, count * dtype.itemsize)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)

    def at(self, offset: int) -> "HostRange":
        """The place of a chunk that begins at byte `offset`."""
        return HostRange(self, offset)

    def _check(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes > self.nbytes - offset:
            raise errors.InvalidArgument(
                f"view host buffer: {nbytes} bytes from {offset} do not lie in {self.nbytes}")


class HostRange(NamedTuple):
    """A contiguous place in a host buffer; its length is the chunk's."""

    buffer: HostBuffer
    # First byte, from the buffer's start.
    offset: int
