#include "server/engine/cataloguer.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "server/base/clock.h"
#include "server/base/logging.h"

namespace kvstream::engine {
namespace {

using What = store::CatalogEntry::What;

void CatchUp(Counter& counter, const Counter& source) {
  const uint64_t all = source.Get();
  counter.Add(all - std::min(all, counter.Get()));
}

}  // namespace

Cataloguer::Cataloguer(const Parts& parts, const std::optional<CatalogOptions>& options,
                       const std::vector<CapacityOptions>& capacities)
    : parts_(parts), options_(options), keeps_(parts.tiers.size()) {
  if (!options.has_value()) return;
  for (size_t t = 0; t < std::min(keeps_.size(), capacities.size()); ++t) {
    if (!capacities[t].shared) continue;
    keeps_[t].hints_max = capacities[t].hints_max;
    keeps_[t].gone_after = capacities[t].gone_after;
  }
}

Cataloguer::~Cataloguer() { Stop(Now()); }

void Cataloguer::Tick(TimeNs now) {
  now_ = now;
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    Keep& keep = keeps_[t];
    if (keep.hints_max == 0) continue;
    // Not before the index has forgotten the file system before.
    if (keep.mount != parts_.evictor->MountOf(TierId{t})) Begin(TierId{t});
    // Whether another node has taken over what this one had is told once that is known.
    const bool begins = keep.run != nullptr && !keep.began_at.has_value();
    if (begins && !parts_.restorer->Restoring(TierId{t})) StartThread(TierId{t}, now);
    if (keep.forget_at.has_value()) ForgetUntold(TierId{t});
    if (keep.frame.empty()) continue;
    if (keep.say_at == kNever) keep.say_at = now + options_->every / 4;
    if (now < keep.say_at) continue;
    // While others wait it waits for being full.
    keep.say_at = kNever;
    if (keep.run == nullptr || keep.run->unsaid() == 0) Say(TierId{t});
  }
}

TimeNs Cataloguer::NextDeadline() const {
  TimeNs next = kNever;
  for (const Keep& keep : keeps_) {
    const bool at_once = !keep.mount.has_value() || keep.forget_at.has_value();
    if (keep.hints_max > 0) next = std::min(next, at_once ? 0 : keep.say_at);
  }
  return next;
}

void Cataloguer::Begin(TierId tier) {
  Keep& keep = keeps_[tier.value];
  const tier::Tier& opened = *parts_.tiers[tier.value];
  tier::TierRoot root = opened.Root();
  // Of yet another one: the next turn knows it.
  if (root.mount != parts_.evictor->MountOf(tier)) return;
  // What was published on the file system before is said there, if anywhere.
  if (!keep.frame.empty()) Say(tier);
  if (keep.run != nullptr) keep.run->Cancel();
  keep.run = nullptr;
  keep.told.reset();
  keep.forget_at.reset();
  keep.mount = root.mount;
  Restorer::Home home = parts_.restorer->HomeOf(tier);
  const char* cause = nullptr;
  if (!root.fd.valid()) cause = "no descriptor for its root";
  if (!home.root.valid()) cause = "no tier that is this node's own keeps its id";
  if (cause != nullptr) return GoWithout(tier, cause);
  CatalogOptions options = *options_;
  options.times.gone_after_seconds = keep.gone_after / kSecond;
  keep.run = std::make_shared<CatalogRun>(
      parts_.poster, keep.counts,
      CatalogRun::Plan{tier, std::move(root), std::move(home.root), options});
  keep.began_at.reset();
}

void Cataloguer::StartThread(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  keep.began_at = now;
  try {
    // It may hang with the file system, and then it stays behind.
    std::thread([run = keep.run] { run->Run(); }).detach();
  } catch (const std::system_error&) {
    keep.run = nullptr;
    GoWithout(tier, "no thread");
  }
}

void Cataloguer::GoWithout(TierId tier, const char* cause) {
  parts_.stats->tiers[tier.value].catalog_failing.Set(1);
  spdlog::warn("a shared tier goes without its catalog: tier={} cause={}",
               parts_.tiers[tier.value]->options().name, cause);
}

void Cataloguer::Add(TierId tier, const store::CatalogEntry& entry) {
  Keep& keep = keeps_[tier.value];
  if (keep.hints_max == 0 || keep.run == nullptr) return;
  keep.frame.Add(entry);
  if (keep.frame.full()) Say(tier);
}

void Cataloguer::Say(TierId tier) {
  Keep& keep = keeps_[tier.value];
  store::CatalogFrame frame = std::exchange(keep.frame, {});
  keep.say_at = kNever;
  if (keep.run == nullptr) return;
  if (keep.run->unsaid() < kUnsaidMax) return keep.run->Say(std::move(frame));
  parts_.stats->tiers[tier.value].catalog_frames_unsaid.Add();
  if (keep.unsaid_quiet.IsOver(now_)) {
    spdlog::warn(
        "the catalog of a shared tier takes nothing, and others do not hear of files: "
        "tier={}",
        parts_.tiers[tier.value]->options().name);
  }
}

void Cataloguer::OnPublished(TierId tier, const store::ChunkFacts& chunk) {
  if (keeps_[tier.value].hints_max == 0) return;
  Add(tier, {What::kFile, chunk, parts_.index->PlaceOf(chunk.key).second});
}

void Cataloguer::OnGone(TierId tier, const KeyDigest& key) {
  store::CatalogEntry entry{What::kGone, {}, {}};
  entry.chunk.key = key;
  Add(tier, entry);
}

void Cataloguer::OnUsed(const KeyDigest& key, TimeNs now) {
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    if (keeps_[t].run == nullptr || !parts_.index->IsHint(key, TierId{t})) continue;
    store::CatalogEntry entry{What::kUsed, {}, {}};
    entry.chunk.siblings = parts_.index->PlaceOf(key).first;
    if (uses_.size() >= kUsesMax) uses_.clear();
    const auto [said, is_new] = uses_.try_emplace({TierId{t}, entry.chunk.siblings}, now);
    if (!is_new && now < said->second + options_->use_every) continue;
    said->second = now;
    Add(TierId{t}, entry);
  }
}

void Cataloguer::Disown(TierId tier) {
  const uint64_t files = parts_.index->Disown(tier);
  spdlog::warn("another node has taken over what this one had on a shared tier: tier={} files={}",
               parts_.tiers[tier.value]->options().name, files);
}

void Cataloguer::Own(const FoundFile& file, TierId tier, TimeNs now) {
  // As those of a start: older than all that is known here, unless somebody uses them.
  const store::OwnFile own{
      {file.key, file.siblings, file.name_space, file.shape, file.content, file.checksums},
      file.before,
      kAdoptedUnused};
  if (parts_.index->AddFound(own, tier, now)) parts_.stats->tiers[tier.value].files_adopted.Add();
}

void Cataloguer::TakeHint(const FoundFile& file, TierId tier) {
  Keep& keep = keeps_[tier.value];
  TierEngineStats& stats = parts_.stats->tiers[tier.value];
  if (keep.told.has_value()) keep.told->insert(file.key);
  if (parts_.index->OnTiers(file.key, TierSet::Of(tier))) return;
  if (parts_.index->tier_usage(tier).hints >= keep.hints_max) {
    stats.hints_refused.Add();
    return;
  }
  const bool is_new = parts_.index->AddHint(
      {file.key, file.siblings, file.name_space, file.shape, file.content, file.checksums},
      file.before, tier);
  if (is_new) stats.hints_heard.Add();
}

void Cataloguer::ForgetUntold(TierId tier) {
  Keep& keep = keeps_[tier.value];
  std::vector<KeyDigest> untold;
  const bool more =
      parts_.index->WalkHints(tier, kForgetAtOnce, &*keep.forget_at, [&](const KeyDigest& key) {
        if (!keep.told->contains(key)) untold.push_back(key);
      });
  for (const KeyDigest& key : untold) parts_.index->RemoveHint(key, tier);
  if (more) return;
  keep.forget_at.reset();
  keep.told.reset();
}

void Cataloguer::OnHeard(const HintsHeard& event, TimeNs now) {
  Keep& keep = keeps_[event.tier.value];
  if (keep.mount == event.mount) {
    if (event.disowned) Disown(event.tier);
    for (const FoundFile& file : event.adopted) Own(file, event.tier, now);
    if (event.telling_all) {
      keep.told.emplace();
      keep.forget_at.reset();
    }
    // A file that is said to be gone may have been stored again since, which costs a miss.
    for (const KeyDigest& key : event.gone) {
      parts_.index->RemoveHint(key, event.tier);
      if (keep.told.has_value()) keep.told->erase(key);
    }
    for (const FoundFile& file : event.files) TakeHint(file, event.tier);
    for (const SiblingsId siblings : event.used) parts_.index->Touch(siblings, now);
    if (event.all_told && keep.told.has_value()) keep.forget_at = 0;
  }
  event.run->Taken();
}

void Cataloguer::PublishRun(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  TierEngineStats& stats = parts_.stats->tiers[tier.value];
  const catalog::CatalogStats& run = *keep.counts;
  CatchUp(stats.catalog_metadata_calls, run.metadata_calls);
  CatchUp(stats.catalog_frames_damaged, run.frames_damaged);
  CatchUp(stats.catalog_terms, run.terms);
  CatchUp(stats.catalog_nodes_adopted, run.nodes_adopted);
  stats.catalog_leads.Set(run.leads.Get());
  absl::Status status = keep.run->status();
  const TimeNs looked_at = std::max(keep.run->looked_at(), keep.began_at.value_or(now));
  if (now >= looked_at + kLookMax) status = absl::DeadlineExceededError("it hangs");
  // Before the first look there is nothing to say.
  const bool failing =
      !status.ok() && (keep.run->looked_at() > 0 || absl::IsDeadlineExceeded(status));
  stats.catalog_failing.Set(failing ? 1 : 0);
  if (failing && keep.failure_quiet.IsOver(now)) {
    spdlog::warn("the catalog of a shared tier cannot be read or written: tier={} cause={}",
                 parts_.tiers[tier.value]->options().name, std::string(status.message()));
  }
}

void Cataloguer::PublishStats(TimeNs now) {
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    parts_.stats->tiers[t].hints.Set(parts_.index->tier_usage(TierId{t}).hints);
    if (keeps_[t].run != nullptr) PublishRun(TierId{t}, now);
  }
}

void Cataloguer::Stop(TimeNs deadline) {
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    if (keeps_[t].run == nullptr) continue;
    if (!keeps_[t].frame.empty()) Say(TierId{t});
    keeps_[t].run->Cancel();
  }
  for (Keep& keep : keeps_) {
    if (keep.run != nullptr && keep.began_at.has_value()) keep.run->Stop(deadline);
    keep.run = nullptr;
  }
}

}  // namespace kvstream::engine
