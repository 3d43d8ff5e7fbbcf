#include "server/gpu/gpu.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/base/check.h"
#include "server/base/logging.h"
#include "server/gpu/copier.h"
#include "server/gpu/mapper.h"

namespace kvstream::gpu {

void MarkLost(const Device& device, DeviceStats* stats, const absl::Status& cause) {
  if (stats->usable.Get() == 0) return;
  stats->usable.Set(0);
  spdlog::error("a GPU is lost, restart the daemon: gpu={} cause={}", device.uuid(),
                std::string(cause.message()));
}

Gpus::Gpus(Driver* driver, TimeNs hung_after)
    : driver_(driver), hung_after_(hung_after), devices_(driver->devices()) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    stats_.push_back(std::make_unique<DeviceStats>());
    stats_.back()->usable.Set(1);
    mappers_.push_back(std::make_unique<Mapper>());
  }
}

Gpus::~Gpus() { (void)Stop(kNever); }

void Gpus::Start(const std::function<void(std::span<const CopyDone>)>& sink) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    copiers_.push_back(std::make_unique<Copier>(devices_[i], stats_[i].get(), hung_after_, sink));
  }
}

void Gpus::Open(RegionSpec spec, absl::AnyInvocable<void(absl::StatusOr<RegionRef>)> reply) {
  const auto device =
      std::find_if(devices_.begin(), devices_.end(),
                   [&spec](const Device* candidate) { return candidate->uuid() == spec.gpu_uuid; });
  if (device == devices_.end()) {
    return reply(absl::FailedPreconditionError(
        "gpu_uuid: " + (devices_.empty() ? driver_->reason()
                                         : "the daemon has no GPU \"" + spec.gpu_uuid + "\"")));
  }
  const auto index = static_cast<uint32_t>(device - devices_.begin());
  if (stats_[index]->usable.Get() == 0) {
    return reply(absl::UnavailableError("GPU " + spec.gpu_uuid + " is lost"));
  }
  mappers_[index]->Open(index, *device, stats_[index].get(), std::move(spec), std::move(reply));
}

void Gpus::WhenClosed(uint32_t device, absl::AnyInvocable<void()> done) {
  mappers_[device]->Do(std::move(done));
}

void Gpus::Submit(Copy copy) {
  KV_CHECK(copy.region != nullptr && copy.bytes > 0);
  Copier& copier = *copiers_[copy.region->device()];
  copier.Submit(std::move(copy));
}

bool Gpus::Stop(TimeNs deadline) {
  bool clean = true;
  for (auto& copier : copiers_) clean = copier->Stop(deadline) && clean;
  for (auto& mapper : mappers_) clean = mapper->Stop(deadline) && clean;
  return clean;
}

}  // namespace kvstream::gpu
