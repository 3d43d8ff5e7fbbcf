// The GPU memory of a KV pool, allocated in one of the ways that engines do.
//
// Thread rule: one thread. Ownership: frees the memory at its end, which must come after its
// region's. Errors: those of client/cuda/cuda_status.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstream {

enum class PoolKind {
  // cudaMalloc.
  kMalloc,
  // One allocation of the virtual memory functions, exportable as a descriptor.
  kVmm,
  // Several of them in one range of addresses, as PyTorch's expandable segments.
  kExpandable,
};

class DevicePool {
 public:
  // `bytes` or a little more.
  static absl::StatusOr<std::unique_ptr<DevicePool>> Create(PoolKind kind, int device,
                                                            uint64_t bytes);
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;
  ~DevicePool();

  void* data() const { return reinterpret_cast<void*>(address_); }
  uint64_t size() const { return size_; }

  // The first bytes.size() of the pool. Both wait for the copy.
  absl::Status Upload(const std::vector<uint8_t>& bytes);
  absl::Status Download(std::vector<uint8_t>* bytes) const;

 private:
  struct Vmm;

  DevicePool(PoolKind kind, int device);
  absl::Status Allocate(uint64_t bytes);
  absl::Status AllocateVmm(uint64_t bytes);

  const PoolKind kind_;
  const int device_;
  uint64_t address_ = 0;
  uint64_t size_ = 0;
  std::unique_ptr<Vmm> vmm_;
};

}  // namespace kvstream
