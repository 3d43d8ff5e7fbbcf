// A GPU over shared memory, for machines without one: a worker's allocation is a memfd, its handle
// names that descriptor of that process, and copies are copies. It keeps the driver's promises
// (tests/gpu/driver_contract_test.cc), but opens a process's own memory too, so that a test's
// worker can live in the test.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/base/unique_fd.h"
#include "server/gpu/driver.h"

namespace kvstream::gpu {

// What a test may do to the fake's devices, and see of them. Any thread.
struct FakeGpuControl {
  // Copies are queued and never complete meanwhile.
  std::atomic<bool> held{false};
  // The same of those from the device alone.
  std::atomic<bool> held_to_host{false};
  // Close does not return meanwhile.
  std::atomic<bool> close_held{false};
  // Every device is lost.
  std::atomic<bool> lost{false};
  // Close fails meanwhile.
  std::atomic<bool> close_fails{false};
  // As Driver::unused; set before the driver is opened.
  std::vector<std::string> unused;
  // Opened allocations.
  std::atomic<int> mappings{0};
  // Batches asked for.
  std::atomic<uint64_t> batches{0};
};

// The uuid of fake device `index`.
std::string FakeGpuUuid(uint32_t index);

// A driver with `devices` fake devices.
std::unique_ptr<Driver> OpenFakeDriver(uint32_t devices,
                                       std::shared_ptr<FakeGpuControl> control = nullptr);

// A worker's allocation on a fake device; freed with this.
class FakeGpuMemory {
 public:
  FakeGpuMemory(const std::string& uuid, uint64_t bytes);
  ~FakeGpuMemory();
  FakeGpuMemory(const FakeGpuMemory&) = delete;
  FakeGpuMemory& operator=(const FakeGpuMemory&) = delete;

  // 64 bytes, as a cudaIpcMemHandle_t.
  std::string handle() const;
  // As an exported VMM allocation.
  int fd() const { return fd_.get(); }
  std::span<std::byte> bytes() const { return bytes_; }
  const std::string& uuid() const { return uuid_; }

 private:
  const std::string uuid_;
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

}  // namespace kvstream::gpu
