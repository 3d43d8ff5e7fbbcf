// The GPU as the engine sees it. One implementation uses the CUDA runtime, and stops it at this
// room's border; the null implementation stands in where there is no driver, no GPU, or no CUDA in
// the build: everything else works, and registering memory is FAILED_PRECONDITION.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstream::gpu {

// Bytes of a block, relative to its start.
struct ByteRun {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Block b of the tensor starts at offset + b * block_stride of the allocation.
struct TensorLayout {
  uint64_t offset = 0;
  uint64_t block_stride = 0;
  std::vector<ByteRun> runs;
};

// A worker's allocation and the layout of its KV in it, as data.
struct RegionSpec {
  // As "GPU-...", never an ordinal.
  std::string gpu_uuid;
  // A raw cudaIpcMemHandle_t.
  std::string ipc_handle;
  uint64_t allocation_bytes = 0;
  uint32_t block_count = 0;
  // Empty for a landing buffer.
  std::vector<TensorLayout> tensors;
  uint32_t landing_parts = 0;
};

// Thread rule: calls come from the engine loop.
class Gpu {
 public:
  virtual ~Gpu() = default;

  // Names of the devices in use; empty means none.
  virtual std::vector<std::string> DeviceNames() const = 0;

  // Why there is none; OK when DeviceNames is not empty.
  virtual absl::Status Available() const = 0;

  // Opens a worker's memory; returns the region's number. FAILED_PRECONDITION without a GPU.
  virtual absl::StatusOr<uint64_t> OpenRegion(const RegionSpec& spec) = 0;

  // Closes a region after its last DMA. NOT_FOUND when unknown.
  virtual absl::Status CloseRegion(uint64_t region) = 0;
};

// The implementation that this build has for this machine.
std::unique_ptr<Gpu> OpenGpu();

}  // namespace kvstream::gpu
