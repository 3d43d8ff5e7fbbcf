#include "server/engine/scrubber.h"

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "server/base/clock.h"
#include "server/base/logging.h"

namespace kvstream::engine {

Scrubber::~Scrubber() { Stop(Now()); }

void Scrubber::Begin(BeginScrub event) {
  const absl::Status status = TryBegin(event);
  if (status.ok()) return;
  if (event.sink != nullptr) {
    event.sink->End(status);
  } else {
    spdlog::warn("no scrub: cause={}", std::string(status.message()));
  }
}

absl::Status Scrubber::TryBegin(BeginScrub& event) {
  if (running()) {
    return absl::FailedPreconditionError("tier " + run_->tier_name() + " is being scrubbed");
  }
  std::vector<ScrubRun::TierFiles> files;
  for (const tier::Tier* tier : parts_.tiers) {
    files.push_back({tier->options().name, tier->Root(), tier->facts().direct});
    if (files.back().root.valid()) continue;
    return absl::ResourceExhaustedError("no descriptor for the root of tier " + files.back().name);
  }
  const uint64_t rate =
      event.bytes_per_second != 0 ? event.bytes_per_second : options_.bytes_per_second;
  auto run = std::make_shared<ScrubRun>(parts_.poster, parts_.stats, std::move(files), event.tiers,
                                        rate, event.sink);
  try {
    // It may hang with the file system, and then it stays behind.
    std::thread([run] { run->Run(); }).detach();
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError("no thread: " + std::string(e.what()));
  }
  run_ = std::move(run);
  return absl::OkStatus();
}

void Scrubber::OnDamaged(FileDamaged event) {
  const store::IndexEntry* entry = parts_.index->Find(event.key);
  known_.reset();
  if (entry != nullptr) known_ = Known{event.key, entry->name_space, entry->shape};
  parts_.index->RemoveReplicas(event.key, event.tier);
  parts_.asides->Begin(event.tier, event.path, event.key, std::move(event.done));
}

void Scrubber::OnRepaired(const FileRepaired& event) {
  // The index learns nothing here of keys that it did not know: a header alone does not say that
  // the shape is the namespace's.
  const store::IndexEntry* entry = parts_.index->Find(event.key);
  if (entry != nullptr) {
    known_ = Known{event.key, entry->name_space, entry->shape};
  }
  if (!known_.has_value() || known_->key != event.key || known_->name_space != event.name_space ||
      known_->shape != event.header.shape) {
    return;
  }
  parts_.index->AddReplica(event.key, event.name_space, event.header.shape, event.header.content,
                           event.header.checksums, event.tier);
}

void Scrubber::Tick(bool draining, TimeNs now) {
  if (options_.every == 0) return;
  if (!due_.has_value()) due_ = now + options_.every;
  if (now < *due_) return;
  due_ = now + options_.every;
  if (draining) return;
  BeginScrub all;
  for (const tier::Tier* tier : parts_.tiers) all.tiers.Add(tier->options().id);
  Begin(std::move(all));
}

TimeNs Scrubber::NextDeadline() const {
  if (options_.every == 0) return kNever;
  return due_.value_or(0);
}

void Scrubber::Stop(TimeNs deadline) {
  if (run_ != nullptr) run_->Stop(deadline);
}

}  // namespace kvstream::engine
