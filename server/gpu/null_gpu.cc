#include "server/gpu/gpu.h"

namespace kvstream::gpu {
namespace {

class NullGpu final : public Gpu {
 public:
  std::vector<std::string> DeviceNames() const override { return {}; }

  absl::Status Available() const override {
    return absl::FailedPreconditionError("no GPU: this build has no CUDA");
  }

  absl::StatusOr<uint64_t> OpenRegion(const RegionSpec&) override { return Available(); }

  absl::Status CloseRegion(uint64_t region) override {
    return absl::NotFoundError("no region " + std::to_string(region));
  }
};

}  // namespace

std::unique_ptr<Gpu> OpenGpu() { return std::make_unique<NullGpu>(); }

}  // namespace kvstream::gpu
