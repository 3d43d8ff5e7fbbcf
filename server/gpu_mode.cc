#include "server/gpu_mode.h"

#include <string>
#include <utility>
#include <vector>

#include "server/base/logging.h"

namespace kvstream {
namespace {

class DriverTurnedOff final : public gpu::Driver {
 public:
  std::vector<gpu::Device*> devices() override { return {}; }
  const std::string& reason() const override { return reason_; }
  const std::vector<std::string>& unused() const override { return unused_; }
  absl::Status Pin(std::span<std::byte>) override { return absl::OkStatus(); }
  void Unpin(std::span<std::byte>) override {}

 private:
  const std::string reason_ = "no GPU: gpu.mode is OFF";
  const std::vector<std::string> unused_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<gpu::Driver>> OpenDriver(
    config::GpuMode mode, absl::FunctionRef<std::unique_ptr<gpu::Driver>()> open) {
  auto driver = mode == config::GpuMode::kOff ? std::make_unique<DriverTurnedOff>() : open();
  const std::vector<gpu::Device*> devices = driver->devices();
  for (const std::string& cause : driver->unused()) {
    spdlog::warn("a GPU is not used: cause={}", cause);
  }
  if (devices.empty() && mode == config::GpuMode::kRequired) {
    return absl::FailedPreconditionError("gpu.mode is REQUIRED: " + driver->reason());
  }
  if (devices.empty()) spdlog::info("gpus not used: reason={}", driver->reason());
  for (const gpu::Device* device : devices) {
    spdlog::info("gpu open: uuid={} name={}", device->uuid(), device->name());
  }
  return driver;
}

}  // namespace kvstream
