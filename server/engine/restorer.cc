#include "server/engine/restorer.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "server/base/clock.h"
#include "server/base/logging.h"

namespace kvstream::engine {
namespace {

constexpr std::string_view kSnapshotFolder = "v1/index/";
constexpr std::string_view kSnapshotSuffix = ".kvindex";

}  // namespace

Restorer::Restorer(const Parts& parts, const std::optional<RestartOptions>& options,
                   std::vector<CapacityOptions> capacities)
    : parts_(parts), options_(options) {
  capacities.resize(parts.tiers.size());
  for (const CapacityOptions& capacity : capacities) {
    Keep& keep = keeps_.emplace_back();
    keep.capacity = capacity;
    keep.settling = options.has_value() && capacity.bytes_max > 0;
  }
}

Restorer::~Restorer() { Stop(Now()); }

Restorer::Home Restorer::HomeOf(TierId tier) const {
  std::string path = std::string(kSnapshotFolder) + parts_.tiers[tier.value]->options().name +
                     std::string(kSnapshotSuffix);
  if (!keeps_[tier.value].capacity.shared) {
    return {parts_.tiers[tier.value]->Root().fd, std::move(path)};
  }
  for (size_t t = 0; t < keeps_.size(); ++t) {
    if (!keeps_[t].capacity.shared) return {parts_.tiers[t]->Root().fd, std::move(path)};
  }
  return {};
}

void Restorer::Tick(TimeNs now) {
  if (!options_.has_value()) return;
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    Keep& keep = keeps_[t];
    // Not before the index has forgotten the one before.
    if (keep.mount != parts_.evictor->MountOf(TierId{t})) Begin(TierId{t}, now);
    if (now < keep.opens_by) continue;
    keep.opens_by = kNever;
    keep.settling = false;
    spdlog::warn("a tier does not say what is on it, and is not waited for: tier={}",
                 parts_.tiers[t]->options().name);
  }
}

TimeNs Restorer::NextDeadline() const {
  TimeNs next = kNever;
  if (!options_.has_value()) return next;
  for (const Keep& keep : keeps_) {
    next = std::min(next, keep.mount.has_value() ? keep.opens_by : 0);
  }
  return next;
}

void Restorer::Begin(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  const tier::Tier& opened = *parts_.tiers[tier.value];
  tier::TierRoot root = opened.Root();
  // Of yet another one: the next turn knows it.
  if (root.mount != parts_.evictor->MountOf(tier)) return;
  if (keep.run != nullptr) keep.run->Stop(now);  // Of the file system before.
  keep.snapshot_read = false;
  keep.run = nullptr;
  keep.mount = root.mount;
  if (!root.fd.valid()) {
    spdlog::warn("a tier's files are not looked for: tier={} cause=no descriptor for its root",
                 opened.options().name);
    return OnOpened({tier, root.mount});
  }
  Home home = HomeOf(tier);
  const bool catalog = keep.capacity.shared && keep.capacity.hints_max > 0 && home.root.valid();
  auto run = std::make_shared<RestoreRun>(
      parts_.poster, parts_.stats,
      RestoreRun::Plan{tier, opened.options().name, std::move(root), opened.facts().direct,
                       std::move(home.root), std::move(home.path), !keep.capacity.shared, catalog,
                       options_->temporaries_grace});
  parts_.asides->NoteChanges(tier, true);
  try {
    // It may hang with the file system, and then it stays behind.
    std::thread([run] { run->Run(); }).detach();
  } catch (const std::system_error& e) {
    parts_.asides->NoteChanges(tier, false);
    spdlog::warn("a tier's files are not looked for: tier={} cause=no thread: {}",
                 opened.options().name, e.what());
    return OnOpened({tier, *keep.mount});
  }
  keep.run = std::move(run);
  if (keep.settling) keep.opens_by = now + kOpensIn;
}

void Restorer::OnOpened(const SnapshotOpened& event) {
  if (!IsOf(event.tier, event.mount)) return;
  Keep& keep = keeps_[event.tier.value];
  parts_.index->Reserve(event.files);
  keep.settling = keep.settling && event.file_bytes > keep.capacity.bytes_max;
  keep.opens_by = kNever;
}

void Restorer::OnFound(const FilesFound& event, TimeNs now) {
  const bool stale = !IsOf(event.tier, event.mount);
  TierEngineStats& stats = parts_.stats->tiers[event.tier.value];
  for (const FoundFile& file : event.files) {
    // What has changed since it was found is gone, or the index has what came after it.
    if (stale || parts_.asides->HasChanged(event.tier, file.key)) continue;
    const store::OwnFile own{
        {file.key, file.siblings, file.name_space, file.shape, file.content, file.checksums},
        file.before,
        file.unused_seconds};
    if (parts_.index->AddFound(own, event.tier, now)) stats.restored_files.Add();
  }
  for (const KeyDigest& key : event.missing) {
    if (stale || parts_.asides->HasChanged(event.tier, key)) continue;
    parts_.index->RemoveReplicas(key, event.tier);
  }
  event.run->Taken();
}

void Restorer::OnRestored(const TierRestored& event) {
  if (!IsOf(event.tier, event.mount)) return;
  Keep& keep = keeps_[event.tier.value];
  keep.snapshot_read = event.snapshot_read;
  if (!event.ended) return;
  keep.run = nullptr;
  parts_.asides->NoteChanges(event.tier, false);
}

bool Restorer::SnapshotRead(TierId tier) const { return keeps_[tier.value].snapshot_read; }

void Restorer::PublishStats() {
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    Keep& keep = keeps_[t];
    // Once it is within its limit it stays so, but for what eviction is there for.
    keep.settling =
        keep.settling && (!keep.snapshot_read ||
                          parts_.index->tier_usage(TierId{t}).bytes > keep.capacity.bytes_max);
    const bool begins = options_.has_value() && !keep.mount.has_value();
    parts_.stats->tiers[t].restoring.Set(begins || keep.run != nullptr ? 1 : 0);
    parts_.stats->tiers[t].settling.Set(keep.settling ? 1 : 0);
  }
}

void Restorer::Stop(TimeNs deadline) {
  for (Keep& keep : keeps_) {
    if (keep.run != nullptr) keep.run->Cancel();
  }
  for (Keep& keep : keeps_) {
    if (keep.run != nullptr) keep.run->Stop(deadline);
    keep.run = nullptr;
  }
}

}  // namespace kvstream::engine
