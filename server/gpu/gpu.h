// The GPUs as the engine sees them: regions of workers' memory, and copies between them and the
// staging pool. The parts behind it: layout.h (where bytes are), mapper.h (one mapping for each
// allocation), copier.h (one thread for each GPU), driver.h (the CUDA runtime's border).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/stats.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"
#include "server/gpu/driver.h"
#include "server/gpu/layout.h"

namespace kvstream::gpu {

// VMM memory that a session handed over. It has one number in the whole daemon.
struct HandoffMemory {
  HandoffMemory(uint64_t n, std::string uuid, uint64_t bytes, UniqueFd descriptor)
      : number(n), gpu_uuid(std::move(uuid)), allocation_bytes(bytes), fd(std::move(descriptor)) {}

  uint64_t number = 0;
  std::string gpu_uuid;
  uint64_t allocation_bytes = 0;
  UniqueFd fd;
};

// A worker's allocation and the layout of its KV in it, as data.
struct RegionSpec {
  // As "GPU-...", never an ordinal.
  std::string gpu_uuid;
  // A raw cudaIpcMemHandle_t; empty for `handoff`.
  std::string ipc_handle;
  std::shared_ptr<const HandoffMemory> handoff;
  uint64_t allocation_bytes = 0;
  uint32_t block_count = 0;
  // Empty for a landing buffer.
  std::vector<TensorLayout> tensors;
  // Of a landing buffer, which is the allocation as a whole.
  uint32_t landing_parts = 0;
};

struct DeviceStats {
  // 0: lost after an error that CUDA does not recover from.
  Gauge usable;
  // 1: copies do not end; it goes back to 0 when they do.
  Gauge hung;
  Gauge regions;
  // One mapping serves all regions of an allocation.
  Gauge mapped_bytes;
  Counter bytes_in;   // To the device.
  Counter bytes_out;  // From it.
  Counter fragments;
  Counter batches;
  Gauge queued_bytes;  // Asked for and not completed.
  Counter unclosed;    // Mappings that could not be closed: they are in mapped_bytes for good.
};

// Notes that a GPU is lost, and says so once.
void MarkLost(const Device& device, DeviceStats* stats, const absl::Status& cause);

class Mapping;

// A worker's memory, opened. Immutable; its mapping is closed some time after the last owner is
// gone, so whoever copies holds one.
class Region {
 public:
  Region(uint32_t device, const RegionSpec& spec, std::optional<BlockLayout> layout,
         std::shared_ptr<const Mapping> mapping, Gauge* count);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Which of the Gpus, from 0.
  uint32_t device() const { return device_; }
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  // Null for a landing buffer.
  const BlockLayout* layout() const { return layout_ ? &*layout_ : nullptr; }
  uint32_t landing_parts() const { return landing_parts_; }
  uint64_t part_bytes() const { return bytes_ / landing_parts_; }

 private:
  const uint32_t device_;
  const uint64_t bytes_;
  const uint32_t landing_parts_;
  const std::optional<BlockLayout> layout_;
  const std::shared_ptr<const Mapping> mapping_;
  const uint64_t address_;
  Gauge* const count_;
};

using RegionRef = std::shared_ptr<const Region>;

struct Copy {
  // The caller's; comes back with the answer.
  uint64_t id = 0;
  Direction direction = Direction::kToDevice;
  RegionRef region;
  // The chunk's blocks; empty: `offset` counts from the region's start, as in a landing buffer.
  // Must stay until the answer.
  std::span<const uint32_t> blocks;
  // Which bytes of the chunk.
  uint64_t offset = 0;
  uint64_t bytes = 0;
  // Pinned; must stay until the answer.
  std::byte* host = nullptr;
};

struct CopyDone {
  uint64_t id = 0;
  // UNAVAILABLE: the GPU is lost, or hangs and the copy was not begun.
  absl::StatusCode code = absl::StatusCode::kOk;
};

class Copier;
class Mapper;

// Thread rule: any thread. Ownership: outlives its regions and the memory of its copies.
class Gpus {
 public:
  // Four batches take milliseconds.
  static constexpr TimeNs kHungAfter = 10 * kSecond;

  // `driver` outlives this. A GPU whose copies do not move for `hung_after` hangs.
  explicit Gpus(Driver* driver, TimeNs hung_after = kHungAfter);
  ~Gpus();
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  // Before the first Submit. `sink` runs on copy threads, and never blocks.
  void Start(const std::function<void(std::span<const CopyDone>)>& sink);

  size_t size() const { return stats_.size(); }
  const std::string& uuid(size_t device) const { return devices_[device]->uuid(); }
  const std::string& name(size_t device) const { return devices_[device]->name(); }
  const DeviceStats& stats(size_t device) const { return *stats_[device]; }
  // Why there is none; empty when there is one.
  const std::string& reason() const { return driver_->reason(); }
  // As Driver::unused.
  const std::vector<std::string>& unused() const { return driver_->unused(); }

  // Opens a worker's memory and checks the layout against it. `reply` runs on the mapper's thread,
  // once: FAILED_PRECONDITION without such a GPU, INVALID_ARGUMENT for what the driver or the
  // layout refuses, UNAVAILABLE when the GPU is lost.
  void Open(RegionSpec spec, absl::AnyInvocable<void(absl::StatusOr<RegionRef>)> reply);
  // Runs `done` on the mapper's thread once what of a device was let go before is closed.
  void WhenClosed(uint32_t device, absl::AnyInvocable<void()> done);

  // Begins a copy; its answer comes to the sink, of those that go well in the order of submission
  // within a direction of a device.
  void Submit(Copy copy);

  // Ends the threads, after the copies that are running. No answer comes any more. Idempotent.
  // False when `deadline` came first: a copy may still touch its host memory, or a thread is in the
  // driver, and the destructor would wait for it.
  bool Stop(TimeNs deadline);

 private:
  Driver* const driver_;
  const TimeNs hung_after_;
  const std::vector<Device*> devices_;
  std::vector<std::unique_ptr<DeviceStats>> stats_;
  // By device: a close that hangs holds up nobody on another.
  std::vector<std::unique_ptr<Mapper>> mappers_;
  std::vector<std::unique_ptr<Copier>> copiers_;
};

}  // namespace kvstream::gpu
