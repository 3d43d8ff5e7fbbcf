"""How GPU memory is offered, over a driver of the test's own: the way of each kind of memory."""

import ctypes
import os
import unittest
import uuid

from kvstreamd import cuda, errors

BASE, SIZE = 0x7F0000000000, 1 << 21
DEVICE, CONTEXT = 3, 0xC0
GPU = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
INVALID_VALUE, NO_DEVICE = 1, 100


class FakeDriver:
    """The driver's functions, as ctypes calls them, over one allocation."""

    def __init__(self, *, is_vmm=False, exports=True, has_ipc=True, memory_type=2):
        self.is_vmm, self.exports, self.has_ipc = is_vmm, exports, has_ipc
        self.memory_type = memory_type
        self.contexts, self.retained, self.handles = [], 0, 0

    def cuGetErrorName(self, result, name):
        name._obj.value = b"CUDA_ERROR_%d" % result
        return 0

    def cuPointerGetAttribute(self, data, attribute, pointer):
        if not BASE <= pointer.value < BASE + SIZE:
            return INVALID_VALUE
        data._obj.value = {2: self.memory_type, 9: DEVICE}[attribute]
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        assert device == DEVICE
        self.retained += 1
        context._obj.value = CONTEXT
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, _):
        self.retained -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, _):
        self.contexts.pop()
        return 0

    def cuDeviceGetUuid(self, data, device):
        assert device == DEVICE and self.contexts == [CONTEXT]
        data._obj[:] = GPU.bytes
        return 0

    def cuMemGetAddressRange_v2(self, base, size, _):
        base._obj.value, size._obj.value = BASE, SIZE
        return 0

    def cuMemRetainAllocationHandle(self, handle, _):
        if not self.is_vmm:
            return INVALID_VALUE
        self.handles += 1
        handle._obj.value = 77
        return 0

    def cuMemRelease(self, _):
        self.handles -= 1
        return 0

    def cuMemExportToShareableHandle(self, fd, handle, kind, flags):
        assert (handle.value, kind, flags.value) == (77, 1, 0)
        if not self.exports:
            return INVALID_VALUE
        fd._obj.value = os.memfd_create("exported")
        return 0

    def cuIpcGetMemHandle(self, handle, base):
        if not self.has_ipc:
            return INVALID_VALUE
        assert base.value == BASE
        ctypes.memset(ctypes.byref(handle._obj), 0xAB, 64)
        return 0


class ShareTest(unittest.TestCase):
    """What the daemon is told of memory."""

    def share(self, fake, pointer=BASE, nbytes=SIZE):
        """The context manager, over the fake."""
        driver = cuda.Driver.__new__(cuda.Driver)
        driver.library = fake
        self.addCleanup(lambda: self.assertEqual((fake.contexts, fake.retained, fake.handles),
                                                 ([], 0, 0)))
        return cuda.share(pointer, nbytes, driver)

    def test_memory_of_an_allocation_goes_by_its_ipc_handle_and_offset(self):
        with self.share(FakeDriver(), BASE + 4096, SIZE - 4096) as memory:
            self.assertEqual(memory.gpu_uuid, f"GPU-{GPU}")
            self.assertEqual((memory.allocation_bytes, memory.offset), (SIZE, 4096))
            self.assertEqual((memory.ipc_handle, memory.fd), (b"\xab" * 64, None))

    def test_memory_of_the_virtual_memory_functions_goes_as_a_descriptor(self):
        with self.share(FakeDriver(is_vmm=True)) as memory:
            self.assertEqual(memory.ipc_handle, b"")
            os.fstat(memory.fd)
        with self.assertRaises(OSError):
            os.fstat(memory.fd)

    def test_a_range_of_several_allocations_is_refused_with_the_setting(self):
        with self.assertRaisesRegex(errors.FailedPrecondition, "expandable_segments"):
            with self.share(FakeDriver(is_vmm=True), BASE, SIZE + 1):
                pass
        with self.assertRaises(errors.InvalidArgument):
            with self.share(FakeDriver(), BASE + 1, SIZE):
                pass

    def test_memory_that_cannot_be_exported_is_refused_with_the_setting(self):
        with self.assertRaisesRegex(errors.FailedPrecondition, "expandable_segments"):
            with self.share(FakeDriver(is_vmm=True, exports=False)):
                pass
        with self.assertRaisesRegex(errors.FailedPrecondition, "pool"):
            with self.share(FakeDriver(has_ipc=False)):
                pass

    def test_what_is_no_device_memory_is_an_invalid_argument(self):
        for fake, pointer in ((FakeDriver(memory_type=1), BASE), (FakeDriver(), BASE - 1)):
            with self.assertRaises(errors.InvalidArgument):
                with self.share(fake, pointer, 1):
                    pass

    def test_without_a_driver_it_says_so(self):
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            pass
        else:
            self.skipTest("there is a driver")
        with self.assertRaisesRegex(errors.FailedPrecondition, "no CUDA driver"):
            with cuda.share(BASE, 1):
                pass


if __name__ == "__main__":
    unittest.main()
