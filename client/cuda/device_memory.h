// GPU memory that the daemon is to open: which allocation a pointer lies in, and the handle by
// which another process maps it.
//
// Memory of cudaMalloc goes by its IPC handle. Memory of the virtual memory functions has none: one
// allocation of it goes as a descriptor over the handoff socket; a range made of several, as
// PyTorch's expandable segments are, is refused.
//
// Thread rule: any thread; calls block for at most the client's call timeout.
// Ownership: none; the memory stays the caller's, and must outlive its region.
// Errors: those of cuda_status.h; INVALID_ARGUMENT for what is no device memory or does not lie in
// one allocation, FAILED_PRECONDITION for memory that no other process can map, with the setting
// that is to blame.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace kvstream::cuda {

struct DeviceMemory {
  // With gpu_uuid, memory and allocation_bytes; the layout is the caller's to add.
  v1::RegisterMemoryRequest request;
  // The allocation's first byte in this process.
  uint64_t base = 0;
  // Of the pointer from there: what the tensors' offsets begin with, bytes.
  uint64_t offset = 0;
  int device = 0;
};

// For `bytes` from `pointer`; `client` carries the descriptor of a VMM allocation.
absl::StatusOr<DeviceMemory> ShareDeviceMemory(Client* client, const void* pointer, uint64_t bytes);

// As "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
absl::StatusOr<std::string> GpuUuid(int device);

}  // namespace kvstream::cuda
