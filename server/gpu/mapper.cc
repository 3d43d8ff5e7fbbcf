#include "server/gpu/mapper.h"

#include <pthread.h>

#include <string>

#include "server/base/clock.h"
#include "server/base/logging.h"

namespace kvstream::gpu {

Mapping::Mapping(Mapper* mapper, Device* device, DeviceStats* stats, uint64_t address,
                 uint64_t bytes)
    : mapper_(mapper), device_(device), stats_(stats), address_(address), bytes_(bytes) {
  stats_->mapped_bytes.Add(bytes_);
}

Mapping::~Mapping() {
  mapper_->Do([mapper = mapper_, device = device_, stats = stats_, address = address_,
               bytes = bytes_] { mapper->Close(device, stats, address, bytes); });
}

Region::Region(uint32_t device, const RegionSpec& spec, std::optional<BlockLayout> layout,
               std::shared_ptr<const Mapping> mapping, Gauge* count)
    : device_(device),
      bytes_(spec.allocation_bytes),
      landing_parts_(spec.landing_parts),
      layout_(std::move(layout)),
      mapping_(std::move(mapping)),
      address_(mapping_->address()),
      count_(count) {
  count_->Add();
}

Region::~Region() { count_->Sub(); }

Mapper::Mapper() {
  thread_ = std::thread([this] { Run(); });
}

void Mapper::Do(absl::AnyInvocable<void()> job) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  jobs_.push_back(std::move(job));
  changed_.NotifyOne();
}

void Mapper::Close(Device* device, DeviceStats* stats, uint64_t address, uint64_t bytes) {
  const absl::Status status = device->Close(address);
  if (status.ok()) {
    stats->mapped_bytes.Sub(bytes);
    return;
  }
  // A lost GPU cannot close it: the memory goes with the process.
  if (absl::IsUnavailable(status)) MarkLost(*device, stats, status);
  stats->unclosed.Add();
  if (!unclosed_quiet_.IsOver(Now())) return;
  spdlog::warn("workers' GPU memory cannot be closed: gpu={} bytes={} cause={}", device->uuid(),
               bytes, std::string(status.message()));
}

bool Mapper::Stop(TimeNs deadline) {
  if (!thread_.joinable()) return true;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
    while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
    }
    if (!ended_) return false;
  }
  thread_.join();
  return true;
}

void Mapper::Run() {
  pthread_setname_np(pthread_self(), "gpu-mapper");
  while (true) {
    absl::AnyInvocable<void()> job;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && jobs_.empty()) changed_.Wait(&mu_);
      if (jobs_.empty()) {
        ended_ = true;
        changed_.NotifyAll();
        return;
      }
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

void Mapper::Open(uint32_t index, Device* device, DeviceStats* stats, RegionSpec spec,
                  absl::AnyInvocable<void(absl::StatusOr<RegionRef>)> reply) {
  Do([this, index, device, stats, spec = std::move(spec), reply = std::move(reply)]() mutable {
    reply(OpenNow(index, device, stats, spec));
  });
}

absl::StatusOr<RegionRef> Mapper::OpenNow(uint32_t index, Device* device, DeviceStats* stats,
                                          const RegionSpec& spec) {
  std::optional<BlockLayout> layout;
  if (spec.landing_parts == 0) {
    auto made = BlockLayout::Make(spec.tensors, spec.block_count, spec.allocation_bytes);
    if (!made.ok()) return made.status();
    layout = *std::move(made);
  }
  auto mapping = Map(index, device, stats, spec);
  if (!mapping.ok()) return mapping.status();
  return std::make_shared<const Region>(index, spec, std::move(layout), *std::move(mapping),
                                        &stats->regions);
}

absl::StatusOr<std::shared_ptr<const Mapping>> Mapper::Map(uint32_t index, Device* device,
                                                           DeviceStats* stats,
                                                           const RegionSpec& spec) {
  std::erase_if(open_, [](const auto& entry) { return entry.second.expired(); });
  // A handle has 64 bytes: no number of handed-over memory looks like one.
  const Key key{index,
                spec.handoff != nullptr ? std::to_string(spec.handoff->number) : spec.ipc_handle};
  if (const auto it = open_.find(key); it != open_.end()) {
    if (auto mapping = it->second.lock(); mapping != nullptr) {
      if (mapping->bytes() == spec.allocation_bytes) return mapping;
      return absl::InvalidArgumentError(
          "allocation_bytes: " + std::to_string(spec.allocation_bytes) +
          ", and the allocation has " + std::to_string(mapping->bytes()));
    }
  }
  const auto address = spec.handoff != nullptr
                           ? device->Import(spec.handoff->fd.get(), spec.allocation_bytes)
                           : device->OpenIpc(spec.ipc_handle, spec.allocation_bytes);
  if (!address.ok()) {
    if (absl::IsUnavailable(address.status())) MarkLost(*device, stats, address.status());
    return address.status();
  }
  auto mapping =
      std::make_shared<const Mapping>(this, device, stats, *address, spec.allocation_bytes);
  open_[key] = mapping;
  return mapping;
}

}  // namespace kvstream::gpu
