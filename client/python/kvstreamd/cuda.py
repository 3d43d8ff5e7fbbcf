"""GPU memory that another process is to open: which allocation a pointer lies in, and the handle by
which it travels. The driver is found at run time, so nothing here needs CUDA until it is used.

Memory of cudaMalloc goes by its IPC handle. Memory of the virtual memory functions has none: one
allocation of it goes as a descriptor; a range made of several, as PyTorch's expandable segments
are, is refused.

Thread rule: any thread. Ownership: none; the memory stays the caller's.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import uuid
from collections.abc import Iterator
from typing import Any

from kvstreamd import errors

_LIBRARY = "libcuda.so.1"
# Of CUpointer_attribute, CUmemAllocationHandleType and CUdevice_attribute in cuda.h.
_MEMORY_TYPE, _DEVICE_ORDINAL = 2, 9
_MEMORY_TYPE_DEVICE = 2
_POSIX_FILE_DESCRIPTOR = 1
_IPC_HANDLE_BYTES = 64
_SETTINGS = ("expandable segments and sleep mode make such memory: unset expandable_segments:True "
             "in PYTORCH_CUDA_ALLOC_CONF, or the engine's sleep mode or cumem allocator")


class _IpcHandle(ctypes.Structure):
    """By value in the driver's ABI, so that it has to be a structure."""

    _fields_ = [("reserved", ctypes.c_ubyte * _IPC_HANDLE_BYTES)]


@dataclasses.dataclass(frozen=True)
class SharedMemory:
    """What the daemon needs to open an allocation."""

    # As "GPU-xxxxxxxx-...".
    gpu_uuid: str
    allocation_bytes: int
    # Of the pointer in its allocation, bytes.
    offset: int
    # One of the two.
    ipc_handle: bytes
    fd: int | None


class Driver:
    """The driver's functions; each raises what it answers."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise errors.FailedPrecondition(f"use GPU memory: no CUDA driver: {error}") from None
        self.check(self.library.cuInit(0), "start the CUDA driver")

    def check(self, result: int, operation: str) -> None:
        """Raises for a CUresult that is not CUDA_SUCCESS."""
        if result == 0:
            return
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(result, ctypes.byref(name))
        text = name.value.decode() if name.value else f"CUDA error {result}"
        # Out of memory is 2, no device 100, an invalid value 1.
        kind: Any = {1: errors.InvalidArgument, 2: errors.ResourceExhausted,
                     100: errors.FailedPrecondition}.get(result, errors.Unavailable)
        raise kind(f"{operation}: {text}")

    def device_of(self, pointer: int) -> int:
        """The ordinal of the device that the memory is on."""
        kind, ordinal = ctypes.c_uint(), ctypes.c_int()
        get = self.library.cuPointerGetAttribute
        address = ctypes.c_uint64(pointer)
        self.check(get(ctypes.byref(kind), _MEMORY_TYPE, address),
                   "share device memory: look up the pointer")
        if kind.value != _MEMORY_TYPE_DEVICE:
            raise errors.InvalidArgument(
                "share device memory: the pointer is no device memory")
        self.check(get(ctypes.byref(ordinal), _DEVICE_ORDINAL, address),
                   "share device memory: look up the pointer's device")
        return ordinal.value

    @contextlib.contextmanager
    def current(self, device: int) -> Iterator[None]:
        """The device's primary context, as the runtime and PyTorch use it, for this thread."""
        context = ctypes.c_void_p()
        self.check(self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
                   "share device memory: use the device's context")
        try:
            self.check(self.library.cuCtxPushCurrent_v2(context),
                       "share device memory: use the device's context")
            try:
                yield
            finally:
                self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        finally:
            self.library.cuDevicePrimaryCtxRelease_v2(device)

    def uuid_of(self, device: int) -> str:
        """As the daemon's GPUs are named; an ordinal means another GPU in another process."""
        raw = (ctypes.c_ubyte * 16)()
        self.check(self.library.cuDeviceGetUuid(ctypes.byref(raw), device),
                   f"describe device {device}")
        return f"GPU-{uuid.UUID(bytes=bytes(raw))}"

    def allocation_of(self, pointer: int) -> tuple[int, int]:
        """(base, bytes) of the allocation."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.check(self.library.cuMemGetAddressRange_v2(
            ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer)),
            "share device memory: find the allocation")
        return base.value, size.value

    def ipc_handle(self, base: int) -> bytes:
        """Of a whole allocation."""
        handle = _IpcHandle()
        try:
            self.check(self.library.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(base)),
                       "share device memory: get an IPC handle")
        except errors.KVStreamError as error:
            raise errors.FailedPrecondition(
                f"{error}; memory of a stream-ordered pool has none") from None
        return bytes(handle.reserved)

    @contextlib.contextmanager
    def vmm_allocation(self, base: int) -> Iterator[int | None]:
        """The handle of a VMM allocation; None for memory of another kind."""
        handle = ctypes.c_uint64()
        held = self.library.cuMemRetainAllocationHandle(
            ctypes.byref(handle), ctypes.c_void_p(base)) == 0
        try:
            yield handle.value if held else None
        finally:
            if held:
                self.library.cuMemRelease(handle)

    def export(self, handle: int) -> int:
        """A descriptor of a VMM allocation; the caller's to close."""
        fd = ctypes.c_int(-1)
        try:
            self.check(self.library.cuMemExportToShareableHandle(
                ctypes.byref(fd), ctypes.c_uint64(handle), _POSIX_FILE_DESCRIPTOR,
                ctypes.c_ulonglong(0)), "share device memory: export as a descriptor")
        except errors.KVStreamError as error:
            raise errors.FailedPrecondition(f"{error}; {_SETTINGS}") from None
        return fd.value


@functools.lru_cache(maxsize=1)
def _driver() -> Driver:
    return Driver()


@contextlib.contextmanager
def share(pointer: int, nbytes: int, driver: Driver | None = None) -> Iterator[SharedMemory]:
    """What the daemon needs to open `nbytes` from `pointer`; its descriptor is closed at the end.
    InvalidArgument for what is no device memory or does not lie in one allocation,
    FailedPrecondition without a driver, and for memory that no other process can map."""
    driver = driver or _driver()
    device = driver.device_of(pointer)
    fd = None
    with driver.current(device):
        gpu_uuid = driver.uuid_of(device)
        base, size = driver.allocation_of(pointer)
        is_one = nbytes <= size - (pointer - base)
        handle = b""
        # Asked first, since an IPC handle's refusal has many causes.
        with driver.vmm_allocation(base) as vmm:
            if vmm is not None and not is_one:
                raise errors.FailedPrecondition(
                    "share device memory: the memory is made of several allocations; " + _SETTINGS)
            if not is_one:
                raise errors.InvalidArgument(f"share device memory: {nbytes} bytes do not lie in "
                                             f"the allocation of {size}")
            if vmm is not None:
                fd = driver.export(vmm)
            else:
                handle = driver.ipc_handle(base)
    try:
        yield SharedMemory(gpu_uuid, size, pointer - base, handle, fd)
    finally:
        if fd is not None:
            os.close(fd)
