// What the tests of a driver run on: the driver, and a worker whose memory it opens. One rig is the
// fake GPU's, one is CUDA's; a test program links one of them.
//
// Thread rule: one thread, but for the driver, whose own rule holds. Ownership: the rig owns its
// driver and its worker. Errors: the worker's own; they are no promise of the driver's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"
#include "server/gpu/driver.h"

namespace kvstream::gpu {

enum class MemoryKind : uint8_t { kIpc, kVmm };

// An allocation of the worker's, as it hands it to a daemon.
struct WorkerMemory {
  uint64_t id = 0;     // The worker's.
  std::string handle;  // Empty for kVmm.
  UniqueFd fd;         // None for kIpc.
  uint64_t bytes = 0;  // What it really has: a driver may round up.
};

class DriverRig {
 public:
  virtual ~DriverRig() = default;

  virtual Driver& driver() = 0;

  // Of the worker, which starts when it is first asked for something.
  virtual absl::StatusOr<WorkerMemory> Allocate(MemoryKind kind, size_t device, uint64_t bytes) = 0;
  virtual absl::Status Write(const WorkerMemory& memory, std::span<const std::byte> bytes) = 0;
  virtual absl::StatusOr<std::vector<std::byte>> Read(const WorkerMemory& memory) = 0;
  virtual absl::Status Free(const WorkerMemory& memory) = 0;
  // SIGKILL, waited for; its memory is gone, and the next call starts another worker.
  virtual void Kill() = 0;
};

// The rig of this test program.
std::unique_ptr<DriverRig> MakeDriverRig();

}  // namespace kvstream::gpu
