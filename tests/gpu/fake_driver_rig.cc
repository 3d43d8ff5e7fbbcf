// The fake GPU's rig: the worker lives in the test's process, since a fake device opens that too.
#include <fcntl.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tests/gpu/driver_rig.h"
#include "tests/support/fake_gpu.h"

namespace kvstream::gpu {
namespace {

class FakeDriverRig final : public DriverRig {
 public:
  Driver& driver() override { return *driver_; }

  absl::StatusOr<WorkerMemory> Allocate(MemoryKind kind, size_t device, uint64_t bytes) override {
    auto made = std::make_unique<FakeGpuMemory>(FakeGpuUuid(static_cast<uint32_t>(device)), bytes);
    WorkerMemory memory{.id = ++last_, .bytes = bytes};
    if (kind == MemoryKind::kVmm) {
      memory.fd.Reset(fcntl(made->fd(), F_DUPFD_CLOEXEC, 0));
    } else {
      memory.handle = made->handle();
    }
    memory_[memory.id] = std::move(made);
    return memory;
  }

  absl::Status Write(const WorkerMemory& memory, std::span<const std::byte> bytes) override {
    std::ranges::copy(bytes, memory_.at(memory.id)->bytes().begin());
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::byte>> Read(const WorkerMemory& memory) override {
    const std::span<std::byte> bytes = memory_.at(memory.id)->bytes();
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  }

  absl::Status Free(const WorkerMemory& memory) override {
    memory_.erase(memory.id);  // Nothing when its worker was killed.
    return absl::OkStatus();
  }

  void Kill() override { memory_.clear(); }

 private:
  const std::unique_ptr<Driver> driver_ = OpenFakeDriver(2);
  uint64_t last_ = 0;
  std::map<uint64_t, std::unique_ptr<FakeGpuMemory>> memory_;
};

}  // namespace

std::unique_ptr<DriverRig> MakeDriverRig() { return std::make_unique<FakeDriverRig>(); }

}  // namespace kvstream::gpu
