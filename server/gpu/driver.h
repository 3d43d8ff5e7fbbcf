// What the daemon asks of a GPU driver, and no more: open a worker's memory, copy, pin. One
// implementation uses the CUDA runtime and is its only user (cuda_gpu.cc); one says that there is
// none (null_gpu.cc); tests bring a third, over shared memory, and hold two of them to one contract
// (tests/gpu/driver_contract_test.cc). Nothing here launches a kernel: kernels of another process
// take time slices from the engine, copy engines do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstream::gpu {

enum class Direction : uint8_t { kToDevice, kToHost };

// One contiguous copy between pinned host memory and opened device memory.
struct Fragment {
  std::byte* host = nullptr;
  uint64_t device = 0;  // An address, as OpenIpc or Import gave it.
  uint64_t bytes = 0;
};

// One GPU. Errors leave it usable, unless they say UNAVAILABLE: then it is lost until the process
// restarts, every later call fails the same way, and no copy is running any more.
class Device {
 public:
  virtual ~Device() = default;

  // As "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx".
  virtual const std::string& uuid() const = 0;
  virtual const std::string& name() const = 0;

  // Maps another process's allocation; returns its address. Thread rule: one thread at a time,
  // which may be another than the one that copies. INVALID_ARGUMENT for a handle that is no handle,
  // is stale, this process's own or another device's, or when the allocation does not have `bytes`.
  virtual absl::StatusOr<uint64_t> OpenIpc(std::string_view handle, uint64_t bytes) = 0;
  // The same for a VMM allocation exported as a POSIX file descriptor, which stays the caller's.
  virtual absl::StatusOr<uint64_t> Import(int fd, uint64_t bytes) = 0;
  // Unmaps what OpenIpc or Import gave. REQUIRES: no copy to or from it is running.
  virtual absl::Status Close(uint64_t address) = 0;

  // Queues a batch of copies behind those of the same direction. Host memory must be pinned.
  // Thread rule, of these two: one thread.
  virtual absl::Status Copy(Direction direction, std::span<const Fragment> fragments) = 0;
  // How many batches of a direction have been completed since the start; they complete in order.
  // Tells a loss also when none is queued.
  virtual absl::StatusOr<uint64_t> Completed(Direction direction) = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;

  // In a fixed order. Empty: none, and `reason` says why.
  virtual std::vector<Device*> devices() = 0;
  virtual const std::string& reason() const = 0;
  // GPUs that failed their start and are not among the devices: why, a text each, which names it.
  virtual const std::vector<std::string>& unused() const = 0;

  // Locks host memory for all devices, so that copies of it run at the link's speed and do not
  // block. RESOURCE_EXHAUSTED when the system refuses. Any thread.
  virtual absl::Status Pin(std::span<std::byte> memory) = 0;
  // REQUIRES: no copy of it is running.
  virtual void Unpin(std::span<std::byte> memory) = 0;
};

// The driver that this build has for this machine. Never fails: without one there are no devices.
std::unique_ptr<Driver> OpenDriver();

}  // namespace kvstream::gpu
