#include "tests/support/fake_gpu.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "server/base/check.h"

namespace kvstream::gpu {
namespace {

struct Handle {
  char magic[8];
  char uuid[40];
  int32_t pid;
  int32_t fd;
  uint64_t inode;
};
static_assert(sizeof(Handle) == 64);
constexpr char kMagic[8] = "fakegpu";

std::span<std::byte> MapAll(int fd, uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  KV_CHECK(memory != MAP_FAILED);
  return {static_cast<std::byte*>(memory), bytes};
}

absl::Status Lost() { return absl::UnavailableError("the fake GPU is lost"); }

class FakeDevice final : public Device {
 public:
  FakeDevice(uint32_t index, FakeGpuControl* control)
      : uuid_(FakeGpuUuid(index)), name_("Fake GPU"), control_(*control) {}

  const std::string& uuid() const override { return uuid_; }
  const std::string& name() const override { return name_; }

  absl::StatusOr<uint64_t> OpenIpc(std::string_view raw, uint64_t bytes) override {
    Handle handle;
    if (raw.size() != sizeof(handle)) return absl::InvalidArgumentError("cuda_ipc_handle: size");
    std::memcpy(&handle, raw.data(), sizeof(handle));
    if (std::memcmp(handle.magic, kMagic, sizeof(kMagic)) != 0) {
      return absl::InvalidArgumentError("cuda_ipc_handle: no handle");
    }
    if (std::string_view(handle.uuid, strnlen(handle.uuid, sizeof(handle.uuid))) != uuid_) {
      return absl::InvalidArgumentError("cuda_ipc_handle: of another device");
    }
    const std::string path =
        "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct stat facts {};
    if (!fd.valid() || fstat(fd.get(), &facts) != 0 || facts.st_ino != handle.inode) {
      return absl::InvalidArgumentError("cuda_ipc_handle: no live allocation");
    }
    return Import(fd.get(), bytes);
  }

  absl::StatusOr<uint64_t> Import(int fd, uint64_t bytes) override {
    if (control_.lost) return Lost();
    struct stat facts {};
    if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
      return absl::InvalidArgumentError("handoff_memory_id: the descriptor is no allocation");
    }
    if (static_cast<uint64_t>(facts.st_size) != bytes) {
      return absl::InvalidArgumentError("allocation_bytes: " + std::to_string(bytes) +
                                        ", and the allocation has " +
                                        std::to_string(facts.st_size));
    }
    const auto address = reinterpret_cast<uint64_t>(MapAll(fd, bytes).data());
    mapped_[address] = bytes;
    control_.mappings += 1;
    return address;
  }

  absl::Status Close(uint64_t address) override {
    const auto it = mapped_.find(address);
    KV_CHECK(it != mapped_.end());
    while (control_.close_held) sched_yield();
    if (control_.close_fails) return absl::InvalidArgumentError("close: it fails, says the test");
    munmap(reinterpret_cast<void*>(address), it->second);
    mapped_.erase(it);
    control_.mappings -= 1;
    return absl::OkStatus();
  }

  absl::Status Copy(Direction direction, std::span<const Fragment> fragments) override {
    if (control_.lost) return Lost();
    control_.batches += 1;
    Lane& lane = LaneOf(direction);
    lane.waiting.emplace_back(fragments.begin(), fragments.end());
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Completed(Direction direction) override {
    Lane& lane = LaneOf(direction);
    if (control_.lost) {
      lane.waiting.clear();
      return Lost();
    }
    if (control_.held || (control_.held_to_host && direction == Direction::kToHost)) {
      return lane.completed;
    }
    for (const auto& batch : lane.waiting) {
      for (const Fragment& fragment : batch) {
        auto* device = reinterpret_cast<std::byte*>(fragment.device);
        const bool in = direction == Direction::kToDevice;
        std::memcpy(in ? device : fragment.host, in ? fragment.host : device, fragment.bytes);
      }
      lane.completed += 1;
    }
    lane.waiting.clear();
    return lane.completed;
  }

 private:
  struct Lane {
    std::vector<std::vector<Fragment>> waiting;
    uint64_t completed = 0;
  };
  Lane& LaneOf(Direction direction) { return lanes_[direction == Direction::kToDevice ? 0 : 1]; }

  const std::string uuid_;
  const std::string name_;
  FakeGpuControl& control_;
  std::array<Lane, 2> lanes_;
  std::map<uint64_t, uint64_t> mapped_;  // Bytes by address.
};

class FakeDriver final : public Driver {
 public:
  FakeDriver(uint32_t devices, std::shared_ptr<FakeGpuControl> control)
      : control_(std::move(control)), reason_(devices == 0 ? "no GPU: the fake has none" : "") {
    for (uint32_t i = 0; i < devices; ++i) {
      devices_.push_back(std::make_unique<FakeDevice>(i, control_.get()));
    }
  }

  std::vector<Device*> devices() override {
    std::vector<Device*> all;
    for (const auto& device : devices_) all.push_back(device.get());
    return all;
  }
  const std::string& reason() const override { return reason_; }
  const std::vector<std::string>& unused() const override { return control_->unused; }
  absl::Status Pin(std::span<std::byte>) override { return absl::OkStatus(); }
  void Unpin(std::span<std::byte>) override {}

 private:
  const std::shared_ptr<FakeGpuControl> control_;
  const std::string reason_;
  std::vector<std::unique_ptr<FakeDevice>> devices_;
};

}  // namespace

std::string FakeGpuUuid(uint32_t index) {
  return "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(index);
}

std::unique_ptr<Driver> OpenFakeDriver(uint32_t devices, std::shared_ptr<FakeGpuControl> control) {
  if (control == nullptr) control = std::make_shared<FakeGpuControl>();
  return std::make_unique<FakeDriver>(devices, std::move(control));
}

FakeGpuMemory::FakeGpuMemory(const std::string& uuid, uint64_t bytes)
    : uuid_(uuid), fd_(memfd_create("fake-gpu", MFD_CLOEXEC)) {
  KV_CHECK(fd_.valid() && ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0);
  bytes_ = MapAll(fd_.get(), bytes);
}

FakeGpuMemory::~FakeGpuMemory() { munmap(bytes_.data(), bytes_.size()); }

std::string FakeGpuMemory::handle() const {
  Handle handle{};
  std::memcpy(handle.magic, kMagic, sizeof(kMagic));
  std::memcpy(handle.uuid, uuid_.data(), uuid_.size());
  handle.pid = getpid();
  handle.fd = fd_.get();
  struct stat facts {};
  KV_CHECK(fstat(fd_.get(), &facts) == 0);
  handle.inode = facts.st_ino;
  return {reinterpret_cast<const char*>(&handle), sizeof(handle)};
}

}  // namespace kvstream::gpu
