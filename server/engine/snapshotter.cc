#include "server/engine/snapshotter.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/logging.h"

namespace kvstream::engine {

Snapshotter::Snapshotter(const Parts& parts, const std::optional<RestartOptions>& options)
    : parts_(parts), options_(options), keeps_(parts.tiers.size()) {
  const bool now_and_then = options.has_value() && options->snapshot_every > 0;
  for (Keep& keep : keeps_) keep.due = now_and_then ? 0 : kNever;
}

Snapshotter::~Snapshotter() {
  for (Keep& keep : keeps_) {
    if (keep.run != nullptr) keep.run->Cancel();
  }
}

void Snapshotter::Tick(TimeNs now) {
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    Keep& keep = keeps_[t];
    if (now < keep.due) continue;
    if (keep.run == nullptr) {
      // The first is due so long after the start.
      const bool first = keep.due == 0;
      keep.due = now + options_->snapshot_every;
      if (first || !parts_.restorer->SnapshotRead(TierId{t}) || !Begin(TierId{t}, now)) continue;
    }
    if (keep.writer.has_value()) GoOn(TierId{t}, /*all=*/false, now);
    if (keep.writer.has_value()) {
      keep.due = keep.run->unwritten() > kUnwrittenMax || keep.run->ended() ? now + kWait : now;
    } else {
      keep.due = now + kWait;
    }
    if (!keep.run->ended()) continue;
    Conclude(TierId{t}, keep.run->status(), now);
    keep.due = now + options_->snapshot_every;
  }
}

TimeNs Snapshotter::NextDeadline() const {
  TimeNs next = kNever;
  for (const Keep& keep : keeps_) next = std::min(next, keep.due);
  return next;
}

bool Snapshotter::Begin(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  Restorer::Home home = parts_.restorer->HomeOf(tier);
  if (!home.root.valid()) {
    Conclude(tier, absl::UnavailableError("no folder to write it in"), now);
    return false;
  }
  auto run = std::make_shared<SnapshotRun>(std::move(home.root), std::move(home.path));
  try {
    // It may hang with the file system, and then it stays behind.
    std::thread([run] { run->Run(); }).detach();
  } catch (const std::system_error& e) {
    Conclude(tier, absl::ResourceExhaustedError("no thread: " + std::string(e.what())), now);
    return false;
  }
  keep.run = std::move(run);
  keep.writer.emplace();
  parts_.index->BeginWalk(tier);
  return true;
}

void Snapshotter::GoOn(TierId tier, bool all, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  bool end = false;
  do {
    if (!all && keep.run->unwritten() > kUnwrittenMax) return;
    end = parts_.index->WalkOn(tier, kSetsAtOnce, now,
                               [&](const store::OwnFile& file) { keep.writer->Add(file); });
    if (end || keep.writer->pending_bytes() >= kPieceBytes) keep.run->Append(keep.writer->Take());
  } while (all && !end);
  if (!end) return;
  keep.run->Finish(keep.writer->Header(static_cast<uint64_t>(absl::ToUnixSeconds(absl::Now()))));
  parts_.stats->tiers[tier.value].snapshot_files.Set(keep.writer->files());
  keep.writer.reset();
}

void Snapshotter::Conclude(TierId tier, const absl::Status& status, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  keep.run = nullptr;
  keep.writer.reset();
  TierEngineStats& stats = parts_.stats->tiers[tier.value];
  const std::string& name = parts_.tiers[tier.value]->options().name;
  stats.snapshot_failing.Set(status.ok() ? 0 : 1);
  if (status.ok()) {
    stats.snapshots_written.Add();
    spdlog::info("index snapshot written: tier={} files={}", name, stats.snapshot_files.Get());
    return;
  }
  stats.snapshot_failures.Add();
  if (keep.failure_quiet.IsOver(now)) {
    spdlog::warn("an index snapshot cannot be written: tier={} cause={}", name,
                 std::string(status.message()));
  }
}

void Snapshotter::WriteAll(TimeNs now) {
  if (!options_.has_value()) return;
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    Keep& keep = keeps_[t];
    if (keep.run != nullptr) keep.run->Cancel();
    keep.run = nullptr;
    if (!parts_.restorer->SnapshotRead(TierId{t}) || !Begin(TierId{t}, now)) continue;
    GoOn(TierId{t}, /*all=*/true, now);
  }
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    const std::shared_ptr<SnapshotRun> run = keeps_[t].run;
    if (run == nullptr) continue;
    const bool ended = WaitFor(*run);
    if (!ended) run->Cancel();
    Conclude(TierId{t}, ended ? run->status() : absl::DeadlineExceededError("it hangs"), now);
  }
}

bool Snapshotter::WaitFor(SnapshotRun& run) const {
  while (true) {
    const size_t before = run.unwritten();
    if (run.WaitEnded(Now() + options_->snapshot_patience)) return true;
    if (run.unwritten() == before) return false;
  }
}

}  // namespace kvstream::engine
