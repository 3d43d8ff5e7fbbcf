// The thread that opens and closes workers' memory on one GPU: both take the driver's locks, and a
// close may wait for the device, which a loop does not have the time for. One mapping serves all
// regions of an allocation; it is closed when the last of them is gone.
//
// Thread rule: any thread. Ownership: outlives its mappings, but they may be let go until Stop.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "server/base/mutex.h"
#include "server/base/quiet_period.h"
#include "server/gpu/gpu.h"

namespace kvstream::gpu {

// An allocation of a worker's, mapped until the last owner lets go.
class Mapping {
 public:
  Mapping(Mapper* mapper, Device* device, DeviceStats* stats, uint64_t address, uint64_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Mapper* const mapper_;
  Device* const device_;
  DeviceStats* const stats_;
  const uint64_t address_;
  const uint64_t bytes_;
};

class Mapper {
 public:
  Mapper();
  ~Mapper() { (void)Stop(kNever); }
  Mapper(const Mapper&) = delete;
  Mapper& operator=(const Mapper&) = delete;

  // As Gpus::Open, on a known device.
  void Open(uint32_t index, Device* device, DeviceStats* stats, RegionSpec spec,
            absl::AnyInvocable<void(absl::StatusOr<RegionRef>)> reply);
  // Runs a job on the thread, after those given before.
  void Do(absl::AnyInvocable<void()> job);
  // Closes a mapping, on the thread.
  void Close(Device* device, DeviceStats* stats, uint64_t address, uint64_t bytes);
  // Finishes what was given and ends the thread. Idempotent. Mappings that are let go later stay
  // open until the process ends. False when `deadline` came first: the driver does not return.
  bool Stop(TimeNs deadline);

 private:
  using Key = std::pair<uint32_t, std::string>;

  void Run();
  absl::StatusOr<RegionRef> OpenNow(uint32_t index, Device* device, DeviceStats* stats,
                                    const RegionSpec& spec);
  absl::StatusOr<std::shared_ptr<const Mapping>> Map(uint32_t index, Device* device,
                                                     DeviceStats* stats, const RegionSpec& spec);

  Mutex mu_;
  CondVar changed_;
  std::deque<absl::AnyInvocable<void()>> jobs_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // The thread's.
  std::map<Key, std::weak_ptr<const Mapping>> open_;
  QuietPeriod unclosed_quiet_;
  std::thread thread_;
};

}  // namespace kvstream::gpu
