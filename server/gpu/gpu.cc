#include "server/gpu/gpu.h"

#include <algorithm>
#include <utility>

#include "server/base/check.h"
#include "server/gpu/copier.h"
#include "server/gpu/mapper.h"

namespace kvstream::gpu {

Gpus::Gpus(Driver* driver) : driver_(driver), devices_(driver->devices()) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    stats_.push_back(std::make_unique<DeviceStats>());
    stats_.back()->usable.Set(1);
  }
  if (!devices_.empty()) mapper_ = std::make_unique<Mapper>();
}

Gpus::~Gpus() { Stop(); }

void Gpus::Start(const std::function<void(std::span<const CopyDone>)>& sink) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    copiers_.push_back(std::make_unique<Copier>(devices_[i], stats_[i].get(), sink));
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
  mapper_->Open(index, *device, stats_[index].get(), std::move(spec), std::move(reply));
}

void Gpus::WhenClosed(absl::AnyInvocable<void()> done) {
  if (mapper_ == nullptr) return done();
  mapper_->Do(std::move(done));
}

void Gpus::Submit(Copy copy) {
  KV_CHECK(copy.region != nullptr && copy.bytes > 0);
  Copier& copier = *copiers_[copy.region->device()];
  copier.Submit(std::move(copy));
}

void Gpus::Stop() {
  for (auto& copier : copiers_) copier->Stop();
  if (mapper_ != nullptr) mapper_->Stop();
}

}  // namespace kvstream::gpu
