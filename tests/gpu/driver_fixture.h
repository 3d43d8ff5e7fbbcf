// The fixture of the driver's tests: opened memory that is closed again, pinned memory, and copies
// that are compared byte by byte.
//
// Thread rule: one thread. Ownership: what Allocate and Open made goes with the test.
// Errors: failures of the test.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/gpu/driver_rig.h"

namespace kvstream::gpu {

// A mapping of a memfd, as the staging pool is, pinned.
class PinnedMemory {
 public:
  PinnedMemory(Driver* driver, uint64_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  Driver& driver_;
  std::span<std::byte> bytes_;
};

// A mapping of a memfd of its own.
std::span<std::byte> MapMemfd(uint64_t bytes);

std::vector<std::byte> RandomBytes(uint64_t bytes, uint64_t seed);

// Cuts both memories into pieces of odd sizes up to `most`, places each piece of the host's at a
// piece of the device's, in a random order, and leaves out some.
std::vector<Fragment> Cut(std::span<std::byte> host, uint64_t device, uint64_t most, uint64_t seed);

// One rig for the whole program: CUDA's has to fork before anything has called CUDA.
class DriverRigTest : public testing::Test {
 protected:
  static DriverRig& rig();
  static Driver& driver() { return rig().driver(); }
};

// Skips without a device.
class DriverTest : public DriverRigTest {
 protected:
  // More than a granule of VMM memory, and no round number.
  static constexpr uint64_t kBytes = 3 * 1024 * 1024 + 512;

  void SetUp() override;
  void TearDown() override;

  static Device& device() { return *driver().devices().front(); }
  const WorkerMemory& Allocate(MemoryKind kind, uint64_t bytes = kBytes);
  void Free(const WorkerMemory& memory);
  // Closed at the end of the test; Open fails the test when the driver refuses.
  absl::StatusOr<uint64_t> TryOpen(const WorkerMemory& memory, uint64_t bytes);
  uint64_t Open(const WorkerMemory& memory);
  void Close(uint64_t address);

  // Copies and waits until it is completed.
  void Copy(Direction direction, std::span<const Fragment> fragments);
  // Waits until so many batches of the direction are completed.
  void Await(Direction direction, uint64_t batches);
  uint64_t Completed(Direction direction);

  void Write(const WorkerMemory& memory, std::span<const std::byte> bytes);
  std::vector<std::byte> Read(const WorkerMemory& memory);
  // Copies both ways and compares every byte: those of the fragments and those beside them.
  void ExpectExact(const WorkerMemory& memory, uint64_t address, uint64_t most = 5000,
                   uint64_t seed = 1);
  // Memory of both kinds can be opened and copied.
  void ExpectUsable();
  void ExpectRefused(const absl::StatusOr<uint64_t>& opened, const std::string& what);

 private:
  std::list<WorkerMemory> allocated_;  // References to its elements stay.
  std::set<uint64_t> opened_;
};

}  // namespace kvstream::gpu
