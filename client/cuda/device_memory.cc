#include "client/cuda/device_memory.h"

#include <utility>

#include "client/cuda/cuda_status.h"
#include "client/owned_fd.h"

namespace kvstream::cuda {
namespace {

// The ABI that this file is written for.
constexpr unsigned kDriverVersion = 12000;

constexpr char kSettings[] =
    "expandable segments and sleep mode make such memory: unset expandable_segments:True in "
    "PYTORCH_CUDA_ALLOC_CONF, or the engine's sleep mode or cumem allocator";

struct Driver {
  decltype(cuMemGetAddressRange)* get_address_range = nullptr;
  decltype(cuMemRetainAllocationHandle)* retain = nullptr;
  decltype(cuMemExportToShareableHandle)* export_handle = nullptr;
  decltype(cuMemRelease)* release = nullptr;
};

absl::StatusOr<Driver> LoadDriver() {
  Driver driver;
  absl::Status s =
      GetDriverFunction("cuMemGetAddressRange", kDriverVersion, &driver.get_address_range);
  s.Update(GetDriverFunction("cuMemRetainAllocationHandle", kDriverVersion, &driver.retain));
  s.Update(
      GetDriverFunction("cuMemExportToShareableHandle", kDriverVersion, &driver.export_handle));
  s.Update(GetDriverFunction("cuMemRelease", kDriverVersion, &driver.release));
  if (!s.ok()) return s;
  return driver;
}

// A reference to the VMM allocation at `address`; not held when the memory is of another kind.
class VmmAllocation {
 public:
  VmmAllocation(const Driver& driver, uint64_t address) : driver_(driver) {
    const CUresult result = driver.retain(&handle_, reinterpret_cast<void*>(address));
    held_ = result == CUDA_SUCCESS;
    // Told by held() alone: that the memory is of another kind is no failure.
    (void)cudaGetLastError();
  }
  ~VmmAllocation() {
    if (held_) (void)driver_.release(handle_);
  }
  VmmAllocation(const VmmAllocation&) = delete;
  VmmAllocation& operator=(const VmmAllocation&) = delete;

  bool held() const { return held_; }

  absl::StatusOr<OwnedFd> Export() const {
    int fd = -1;
    const CUresult result =
        driver_.export_handle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS) return OwnedFd(fd);
    return absl::FailedPreconditionError(
        std::string(FromDriver(result, "share device memory: export as a descriptor").message()) +
        "; " + kSettings);
  }

 private:
  const Driver& driver_;
  CUmemGenericAllocationHandle handle_ = 0;
  bool held_ = false;
};

absl::StatusOr<int> DeviceOf(const void* pointer) {
  cudaPointerAttributes attributes = {};
  if (auto s = FromCuda(cudaPointerGetAttributes(&attributes, pointer),
                        "share device memory: look up the pointer");
      !s.ok()) {
    return s;
  }
  if (attributes.type != cudaMemoryTypeDevice) {
    return absl::InvalidArgumentError("share device memory: the pointer is no device memory");
  }
  return attributes.device;
}

}  // namespace

absl::StatusOr<std::string> GpuUuid(int device) {
  cudaDeviceProp properties = {};
  if (auto s = FromCuda(cudaGetDeviceProperties(&properties, device),
                        "describe device " + std::to_string(device));
      !s.ok()) {
    return s;
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string uuid = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    const auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
    uuid += kDigits[byte >> 4];
    uuid += kDigits[byte & 15];
  }
  return uuid;
}

absl::StatusOr<DeviceMemory> ShareDeviceMemory(Client* client, const void* pointer,
                                               uint64_t bytes) {
  const auto device = DeviceOf(pointer);
  if (!device.ok()) return device.status();
  const CurrentDevice current(*device);
  if (!current.status().ok()) return current.status();
  const auto driver = LoadDriver();
  if (!driver.ok()) return driver.status();
  const auto uuid = GpuUuid(*device);
  if (!uuid.ok()) return uuid.status();

  const auto address = reinterpret_cast<uint64_t>(pointer);
  CUdeviceptr base = 0;
  size_t size = 0;
  if (auto s = FromDriver(driver->get_address_range(&base, &size, address),
                          "share device memory: find the allocation");
      !s.ok()) {
    return s;
  }
  DeviceMemory memory;
  memory.base = base;
  memory.offset = address - base;
  memory.device = *device;
  memory.request.set_gpu_uuid(*uuid);
  memory.request.set_allocation_bytes(size);
  const bool is_one = memory.offset <= size && bytes <= size - memory.offset;

  // Asked first, since an IPC handle's refusal has many causes.
  const VmmAllocation vmm(*driver, base);
  if (vmm.held()) {
    if (!is_one) {
      return absl::FailedPreconditionError(
          std::string("share device memory: the memory is made of several allocations; ") +
          kSettings);
    }
    const auto fd = vmm.Export();
    if (!fd.ok()) return fd.status();
    const auto id = client->AttachDeviceMemory(fd->get(), *uuid, size);
    if (!id.ok()) return id.status();
    memory.request.set_handoff_memory_id(*id);
    return memory;
  }
  if (!is_one) {
    return absl::InvalidArgumentError("share device memory: " + std::to_string(bytes) +
                                      " bytes do not lie in the allocation of " +
                                      std::to_string(size));
  }
  cudaIpcMemHandle_t handle = {};
  const cudaError_t error = cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(base));
  if (error != cudaSuccess) {
    return absl::FailedPreconditionError(
        std::string(FromCuda(error, "share device memory: get an IPC handle").message()) +
        "; memory of a stream-ordered pool has none");
  }
  memory.request.set_cuda_ipc_handle(handle.reserved, sizeof handle.reserved);
  return memory;
}

}  // namespace kvstream::cuda
