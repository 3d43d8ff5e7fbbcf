// The driver of a build without CUDA.
#include "server/gpu/driver.h"

namespace kvstream::gpu {
namespace {

class NullDriver final : public Driver {
 public:
  std::vector<Device*> devices() override { return {}; }
  const std::string& reason() const override { return reason_; }
  const std::vector<std::string>& unused() const override { return unused_; }
  absl::Status Pin(std::span<std::byte>) override { return absl::OkStatus(); }
  void Unpin(std::span<std::byte>) override {}

 private:
  const std::string reason_ = "no GPU: this build has no CUDA";
  const std::vector<std::string> unused_ = {};
};

}  // namespace

std::unique_ptr<Driver> OpenDriver() { return std::make_unique<NullDriver>(); }

}  // namespace kvstream::gpu
