#include "tests/gpu/device_pool.h"

#include <algorithm>

#include "client/cuda/cuda_status.h"

namespace kvstream {

using cuda::CurrentDevice;
using cuda::FromCuda;
using cuda::FromDriver;
using cuda::GetDriverFunction;

// The driver's functions, and what they have made.
struct DevicePool::Vmm {
  decltype(cuMemGetAllocationGranularity)* granularity = nullptr;
  decltype(cuMemCreate)* create = nullptr;
  decltype(cuMemRelease)* release = nullptr;
  decltype(cuMemAddressReserve)* reserve = nullptr;
  decltype(cuMemAddressFree)* free = nullptr;
  decltype(cuMemMap)* map = nullptr;
  decltype(cuMemUnmap)* unmap = nullptr;
  decltype(cuMemSetAccess)* set_access = nullptr;

  // Each `granule` bytes, mapped one after the other.
  uint64_t granule = 0;
  std::vector<CUmemGenericAllocationHandle> mapped;

  absl::Status Load() {
    constexpr unsigned kVersion = 12000;
    absl::Status s = GetDriverFunction("cuMemGetAllocationGranularity", kVersion, &granularity);
    s.Update(GetDriverFunction("cuMemCreate", kVersion, &create));
    s.Update(GetDriverFunction("cuMemRelease", kVersion, &release));
    s.Update(GetDriverFunction("cuMemAddressReserve", kVersion, &reserve));
    s.Update(GetDriverFunction("cuMemAddressFree", kVersion, &free));
    s.Update(GetDriverFunction("cuMemMap", kVersion, &map));
    s.Update(GetDriverFunction("cuMemUnmap", kVersion, &unmap));
    s.Update(GetDriverFunction("cuMemSetAccess", kVersion, &set_access));
    return s;
  }
};

absl::StatusOr<std::unique_ptr<DevicePool>> DevicePool::Create(PoolKind kind, int device,
                                                               uint64_t bytes) {
  std::unique_ptr<DevicePool> pool(new DevicePool(kind, device));
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  if (auto s = pool->Allocate(bytes); !s.ok()) return s;
  return pool;
}

DevicePool::DevicePool(PoolKind kind, int device) : kind_(kind), device_(device) {}

absl::Status DevicePool::Allocate(uint64_t bytes) {
  if (kind_ != PoolKind::kMalloc) return AllocateVmm(bytes);
  void* memory = nullptr;
  if (auto s = FromCuda(cudaMalloc(&memory, bytes), "allocate pool"); !s.ok()) return s;
  address_ = reinterpret_cast<uint64_t>(memory);
  size_ = bytes;
  return absl::OkStatus();
}

absl::Status DevicePool::AllocateVmm(uint64_t bytes) {
  vmm_ = std::make_unique<Vmm>();
  if (auto s = vmm_->Load(); !s.ok()) return s;
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t unit = 0;
  if (auto s = FromDriver(vmm_->granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                          "allocate pool: granularity");
      !s.ok()) {
    return s;
  }
  // An expandable pool has two granules at least, or it would be no such thing.
  const uint64_t rounded = (bytes + unit - 1) / unit * unit;
  const uint64_t size =
      kind_ == PoolKind::kExpandable ? std::max<uint64_t>(rounded, 2 * unit) : rounded;
  vmm_->granule = kind_ == PoolKind::kExpandable ? unit : size;
  CUdeviceptr address = 0;
  if (auto s = FromDriver(vmm_->reserve(&address, size, 0, 0, 0), "allocate pool: reserve");
      !s.ok()) {
    return s;
  }
  address_ = address;
  size_ = size;
  for (uint64_t at = 0; at < size; at += vmm_->granule) {
    CUmemGenericAllocationHandle handle = 0;
    if (auto s = FromDriver(vmm_->create(&handle, vmm_->granule, &properties, 0),
                            "allocate pool: create");
        !s.ok()) {
      return s;
    }
    const CUresult mapped = vmm_->map(address + at, vmm_->granule, 0, handle, 0);
    if (mapped != CUDA_SUCCESS) {
      (void)vmm_->release(handle);
      return FromDriver(mapped, "allocate pool: map");
    }
    vmm_->mapped.push_back(handle);
  }
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return FromDriver(vmm_->set_access(address, size, &access, 1), "allocate pool: give access");
}

DevicePool::~DevicePool() {
  if (address_ == 0) return;
  const CurrentDevice current(device_);
  if (kind_ == PoolKind::kMalloc) {
    (void)cudaFree(data());
    return;
  }
  for (size_t i = 0; i < vmm_->mapped.size(); ++i) {
    (void)vmm_->unmap(address_ + i * vmm_->granule, vmm_->granule);
    (void)vmm_->release(vmm_->mapped[i]);
  }
  (void)vmm_->free(address_, size_);
}

absl::Status DevicePool::Upload(const std::vector<uint8_t>& bytes) {
  const CurrentDevice current(device_);
  if (!current.status().ok()) return current.status();
  if (auto s = FromCuda(cudaMemcpy(data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
                        "upload pool");
      !s.ok()) {
    return s;
  }
  // The copy of pageable memory may end before the GPU has it.
  return FromCuda(cudaDeviceSynchronize(), "upload pool: wait");
}

absl::Status DevicePool::Download(std::vector<uint8_t>* bytes) const {
  const CurrentDevice current(device_);
  if (!current.status().ok()) return current.status();
  return FromCuda(cudaMemcpy(bytes->data(), data(), bytes->size(), cudaMemcpyDeviceToHost),
                  "download pool");
}

}  // namespace kvstream
