#include "server/engine/evictor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/base/logging.h"
#include "server/store/chunk_format.h"

namespace kvstream::engine {

Evictor::Evictor(const Parts& parts, std::vector<CapacityOptions> capacities) : parts_(parts) {
  capacities.resize(parts.tiers.size());
  keeps_.resize(parts.tiers.size());
  for (size_t t = 0; t < keeps_.size(); ++t) {
    keeps_[t].capacity = capacities[t];
    keeps_[t].measure_at = capacities[t].free_percent_min > 0 ? 0 : kNever;
    keeps_[t].mount = parts.tiers[t]->stats().remounts.Get();
  }
}

bool Evictor::MakeRoom(TierId tier, uint64_t bytes, absl::AnyInvocable<void()> done, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  if (keep.unlinks == 0 && !GiveUp(tier, now)) {
    NoteStuck(tier, now);
    return false;
  }
  keep.waiters.push_back({bytes, std::move(done)});
  GiveUpWhatIsDue(tier, now);
  return true;
}

Evictor::Room Evictor::RoomOf(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  keep.wake_at = kNever;
  const uint64_t max = keep.capacity.bytes_max;
  if (max == 0) return {};
  const uint64_t used = parts_.index->tier_usage(tier).bytes + keep.unlinking;
  const bool more_comes = keep.unlinks > 0 && now < keep.unlinked_at + kStuckFor;
  if (more_comes) keep.wake_at = keep.unlinked_at + kStuckFor;
  return {max - std::min(max, used), more_comes};
}

void Evictor::OnMeasured(const tier::Completion& completion, TimeNs now) {
  const TierId tier = completion.tier;
  Keep& keep = keeps_[tier.value];
  keep.measuring = false;
  keep.measure_at = now + kMeasureEvery;
  if (completion.code != absl::StatusCode::kOk) return;  // Its health says more.
  const tier::Space& space = completion.space;
  TierEngineStats& stats = parts_.stats->tiers[tier.value];
  stats.space_bytes.Set(space.bytes);
  stats.space_free_bytes.Set(space.free_bytes);
  JudgeRoom(tier, space, now);
  // An eighth more than the floor, so that not every measuring finds a little.
  const auto lacking = [&](uint64_t all, uint64_t free) -> uint64_t {
    const uint64_t floor = all / 100 * keep.capacity.free_percent_min;
    return free < floor ? floor + floor / 8 - free : 0;
  };
  const bool in_vain = now < keep.in_vain_until;
  const uint64_t bytes = in_vain ? 0 : lacking(space.bytes, space.free_bytes);
  const uint64_t files = in_vain ? 0 : lacking(space.inodes, space.free_inodes);
  keep.floor_bytes_left = bytes - std::min(bytes, keep.unlinking);
  keep.floor_files_left = files - std::min<uint64_t>(files, keep.unlinks);
}

void Evictor::JudgeRoom(TierId tier, const tier::Space& space, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  const uint64_t written = parts_.tiers[tier.value]->stats().bytes_written.Get();
  if (keep.unlinked_since > 0) {
    // But for what we have written ourselves; half of it is enough.
    const uint64_t there = space.free_bytes + (written - keep.written_then);
    const bool shows = there >= keep.free_then + keep.unlinked_since / 2;
    keep.in_vain = shows ? 0 : keep.in_vain + 1;
  }
  keep.free_then = space.free_bytes;
  keep.written_then = written;
  keep.unlinked_since = 0;
  if (keep.in_vain == kInVainMax) {
    keep.in_vain = 0;
    keep.in_vain_until = now + kInVainFor;
    if (keep.in_vain_quiet.IsOver(now)) {
      spdlog::warn("deleting chunks makes no room, and is left off for a minute: tier={} free={}",
                   parts_.tiers[tier.value]->options().name, space.free_bytes);
    }
  }
  parts_.stats->tiers[tier.value].evictions_in_vain.Set(now < keep.in_vain_until ? 1 : 0);
}

void Evictor::Tick(TimeNs now) {
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    Keep& keep = keeps_[t];
    CheckMount(TierId{t});
    GiveUpWhatIsDue(TierId{t}, now);
    // Behind what is being unlinked, and so not before its room is free.
    if (keep.measuring || now < keep.measure_at) continue;
    keep.measuring = true;
    parts_.tiers[t]->Measure(Ticket{next_ticket_++});
  }
  if (now >= sweep_at_ && parts_.index->SweepCutOff(kSweep)) sweep_at_ = now + kSweepEvery;
}

void Evictor::CheckMount(TierId tier) {
  Keep& keep = keeps_[tier.value];
  const uint64_t mount = parts_.tiers[tier.value]->stats().remounts.Get();
  if (std::exchange(keep.mount, mount) == mount) return;
  parts_.index->ForgetTier(tier);
  keep.unlinked_since = 0;
}

TimeNs Evictor::NextDeadline() const {
  TimeNs next = kNever;
  for (const Keep& keep : keeps_) {
    if (!keep.measuring) next = std::min(next, keep.measure_at);
    next = std::min(next, keep.wake_at);
    const bool looks_again = keep.over_limit && keep.stuck_until > 0 && keep.unlinks == 0;
    if (looks_again) next = std::min(next, keep.stuck_until);
  }
  return next;
}

bool Evictor::MustGiveUp(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  if (const uint64_t max = keep.capacity.bytes_max; max > 0) {
    // From a little below the limit, since writes are under way, to well below.
    const uint64_t used = parts_.index->tier_usage(tier).bytes;
    keep.over_limit = used > (keep.over_limit ? max - max / 16 : max - max / 32);
  }
  uint64_t waited_for = 0;
  for (const Waiter& waiter : keep.waiters) waited_for += waiter.bytes;
  if (waited_for > keep.unlinking) return true;
  const bool lacks = keep.over_limit || keep.floor_bytes_left > 0 || keep.floor_files_left > 0;
  return lacks && now >= keep.stuck_until;
}

void Evictor::GiveUpWhatIsDue(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  while (keep.unlinks < kUnlinksMax && MustGiveUp(tier, now)) {
    if (GiveUp(tier, now)) continue;
    // What is being unlinked is the last that there was, and may do.
    if (keep.unlinks == 0) NoteStuck(tier, now);
    return;
  }
}

void Evictor::NoteStuck(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  keep.stuck_until = now + kStuckFor;
  parts_.stats->tiers[tier.value].evictions_stuck.Add();
  if (keep.stuck_quiet.IsOver(now)) {
    spdlog::warn("a tier is full, and has nothing to give up: tier={} chunk_bytes={}",
                 parts_.tiers[tier.value]->options().name, parts_.index->tier_usage(tier).bytes);
  }
  // They find out for themselves whether there is room.
  for (Waiter& waiter : std::exchange(keep.waiters, {})) waiter.done();
}

bool Evictor::GiveUp(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  const std::vector<store::EvictedFile> files = parts_.index->Evict(tier);
  TierEngineStats& stats = parts_.stats->tiers[tier.value];
  for (const store::EvictedFile& file : files) {
    stats.files_evicted.Add();
    stats.bytes_evicted.Add(file.bytes);
    Unlink(tier, file, now);
  }
  if (!files.empty()) keep.stuck_until = 0;
  return !files.empty();
}

void Evictor::GiveUpFile(TierId tier, const store::EvictedFile& file, TimeNs now) {
  parts_.index->RemoveReplicas(file.key, tier);
  Unlink(tier, file, now);
}

void Evictor::Unlink(TierId tier, const store::EvictedFile& file, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  if (keep.unlinks == 0) keep.unlinked_at = now;
  keep.unlinks += 1;
  keep.unlinking += file.bytes;
  keep.floor_bytes_left -= std::min(keep.floor_bytes_left, file.bytes);
  keep.floor_files_left -= std::min<uint64_t>(keep.floor_files_left, 1);
  parts_.asides->GiveUp(tier, store::ChunkPath(file.name_space, file.key), file.key,
                        [this, tier, bytes = file.bytes](bool unlinked, TimeNs then) {
                          OnUnlinked(tier, bytes, unlinked, then);
                        });
}

void Evictor::OnUnlinked(TierId tier, uint64_t bytes, bool unlinked, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  keep.unlinks -= 1;
  keep.unlinking -= bytes;
  keep.unlinked_at = now;
  if (!unlinked) return NoteStuck(tier, now);
  keep.unlinked_since += bytes;
  // Whoever waits longest is served first.
  while (bytes > 0 && !keep.waiters.empty()) {
    Waiter& first = keep.waiters.front();
    const uint64_t taken = std::min(bytes, first.bytes);
    first.bytes -= taken;
    bytes -= taken;
    if (first.bytes > 0) break;
    absl::AnyInvocable<void()> done = std::move(first.done);
    keep.waiters.erase(keep.waiters.begin());
    done();
  }
  GiveUpWhatIsDue(tier, now);
}

void Evictor::PublishStats() {
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    const store::ChunkIndex::TierUsage& usage = parts_.index->tier_usage(TierId{t});
    TierEngineStats& stats = parts_.stats->tiers[t];
    stats.chunk_files.Set(usage.files);
    stats.chunk_bytes.Set(usage.bytes);
    stats.cut_off_bytes.Set(usage.cut_off_bytes);
  }
}

}  // namespace kvstream::engine
