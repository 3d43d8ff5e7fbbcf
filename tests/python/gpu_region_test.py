"""Regions of a real GPU, without PyTorch: stores out of it and loads into it. Skips without one."""

import contextlib
import ctypes
import unittest

import numpy as np

import kvstreamd
from daemon_case import CHUNK_BYTES, PATIENCE_S, DaemonCase, chunk_bytes_of, description
from daemon_case import prefix_hashes
from kvstreamd import cuda, errors

BLOCKS, BLOCK_BYTES = 32, CHUNK_BYTES // 2


class DeviceTensor:
    """Bytes of shape (2, BLOCKS, BLOCK_BYTES / 2): keys and values apart, as some engines' are."""

    shape = (2, BLOCKS, BLOCK_BYTES // 2)

    def __init__(self, driver, stack):
        self.driver, self.pointer = driver, ctypes.c_uint64()
        context = ctypes.c_void_p()
        driver.check(driver.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "retain")
        stack.callback(driver.library.cuDevicePrimaryCtxRelease_v2, 0)
        driver.check(driver.library.cuCtxPushCurrent_v2(context), "push")
        stack.callback(driver.library.cuCtxPopCurrent_v2, ctypes.byref(ctypes.c_void_p()))
        driver.check(driver.library.cuMemAlloc_v2(ctypes.byref(self.pointer),
                                                  ctypes.c_size_t(BLOCKS * BLOCK_BYTES)),
                     "allocate")
        stack.callback(driver.library.cuMemFree_v2, self.pointer)

    def data_ptr(self):
        return self.pointer.value

    def stride(self):
        return (BLOCKS * BLOCK_BYTES // 2, BLOCK_BYTES // 2, 1)

    def element_size(self):
        return 1

    def write(self, array):
        """From host memory; returns when it is there."""
        self.driver.check(self.driver.library.cuMemcpyHtoD_v2(
            self.pointer, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes)),
            "copy")
        self.driver.check(self.driver.library.cuCtxSynchronize(), "synchronize")

    def read(self):
        """All of it, as an array of its shape."""
        array = np.empty(self.shape, dtype=np.uint8)
        self.driver.check(self.driver.library.cuMemcpyDtoH_v2(
            array.ctypes.data_as(ctypes.c_void_p), self.pointer, ctypes.c_size_t(array.nbytes)),
            "copy")
        return array


class GpuRegionTest(DaemonCase):
    """With the daemon as it is found: it has to see the GPU too."""

    def setUp(self):
        try:
            self.driver = cuda.Driver()
        except errors.KVStreamError as error:
            self.skipTest(f"no GPU: {error}")
        super().setUp()
        if not self.client.status().gpus:
            self.skipTest(f"the daemon has no GPU: {self.client.status().gpu_reason}")
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.tensor = DeviceTensor(self.driver, stack)

    def test_what_is_stored_out_of_a_gpu_is_loaded_into_other_blocks(self):
        hashes = prefix_hashes(4)
        namespace = self.client.register_namespace(description())
        region = self.client.register_region([self.tensor], block_dim=1)
        self.assertEqual((region.block_count, region.block_bytes), (BLOCKS, BLOCK_BYTES))
        content = np.zeros(DeviceTensor.shape, dtype=np.uint8)
        for number, each in enumerate(hashes):
            for i in range(2):
                content[:, 2 * number + i] = chunk_bytes_of(each)[
                    i * BLOCK_BYTES:(i + 1) * BLOCK_BYTES].reshape(2, -1)
        self.tensor.write(content)
        self.client.store(namespace, [
            kvstreamd.ChunkAt(each, region.at([2 * i, 2 * i + 1]))
            for i, each in enumerate(hashes)], durable=True).result()
        # Host memory shows the bytes in a chunk's order.
        self.assertEqual(self.load(namespace, hashes).leading_valid, 4)
        outcome = self.client.read_step([kvstreamd.ReadRequest(
            namespace=namespace, request_id=1,
            chunks=[kvstreamd.ChunkAt(each, region.at([31 - 2 * i, 16 + 2 * i]))
                    for i, each in enumerate(hashes)])]).result(PATIENCE_S)[0]
        self.assertEqual(outcome.leading_valid, 4)
        after = self.tensor.read()
        for i in range(4):
            np.testing.assert_array_equal(after[:, 31 - 2 * i], content[:, 2 * i])
            np.testing.assert_array_equal(after[:, 16 + 2 * i], content[:, 2 * i + 1])
        np.testing.assert_array_equal(after[:, :8], content[:, :8])
        self.client.session.abandon(errors.Unavailable("try a reconnect"))
        self.client.reconnect()
        self.client.unregister_region(region)
        with self.assertRaises(errors.FailedPrecondition):
            self.client.store(namespace, [kvstreamd.ChunkAt(hashes[0], region.at([0, 1]))])


if __name__ == "__main__":
    unittest.main()
