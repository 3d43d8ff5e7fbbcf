#include "server/engine/tier_keeper.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "server/base/logging.h"

namespace kvstream::engine {
namespace {

using sched::TierHealth;

// How often it looks at a try that runs.
constexpr TimeNs kLookAtTry = 50 * kMillisecond;

// What the daemon itself is short of says nothing about the tier.
bool IsOurShortage(const tier::Completion& completion) {
  return completion.error == EMFILE || completion.error == ENFILE || completion.error == ENOMEM;
}

std::string WhatFailed(const tier::Completion& completion) {
  return completion.error != 0 ? std::strerror(completion.error)
                               : absl::StatusCodeToString(completion.code);
}

}  // namespace

void TierKeeper::NoteRead(const tier::Completion& completion, const ContentId& content,
                          TimeNs now) {
  Keep& keep = keeps_[completion.tier.value];
  if (completion.code == absl::StatusCode::kOk) {
    keep.failed.clear();
    return keep.health.NoteRead(true, now);
  }
  // Nor does a file that is missing or damaged.
  if (completion.code == absl::StatusCode::kNotFound ||
      completion.code == absl::StatusCode::kDataLoss || IsOurShortage(completion)) {
    return;
  }
  CausesOf(completion.tier).reads.Set(WhatFailed(completion));
  if (std::find(keep.failed.begin(), keep.failed.end(), content) != keep.failed.end()) return;
  keep.failed.push_back(content);
  keep.health.NoteRead(false, now);
  if (keep.health.reads_out()) keep.failed.clear();
  Apply(now);
}

void TierKeeper::NoteWrite(const tier::Completion& completion, TimeNs now) {
  if (IsOurShortage(completion)) return;
  const bool ok = completion.code == absl::StatusCode::kOk ||
                  completion.code == absl::StatusCode::kAlreadyExists;
  if (!ok) CausesOf(completion.tier).writes.Set(WhatFailed(completion));
  keeps_[completion.tier.value].health.NoteWrite(ok, now);
  if (!ok) Apply(now);
}

bool TierKeeper::SetByOperator(TierId tier, bool in_service, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  if (keep.held_out == !in_service) return false;
  keep.held_out = !in_service;
  Apply(now);
  return true;
}

void TierKeeper::Apply(TimeNs now) {
  const auto count = static_cast<uint32_t>(keeps_.size());
  for (uint32_t t = 0; t < count; ++t) ApplyReads(TierId{t}, now);
  TierSet taking;
  for (uint32_t t = 0; t < count; ++t) {
    const bool usable = parts_.reads->router().lane(TierId{t}).usable();
    if (usable && !keeps_[t].health.writes_out()) taking.Add(TierId{t});
  }
  for (uint32_t t = 0; t < count; ++t) ApplyWrites(TierId{t}, !taking.empty());
  for (const Keep& keep : keeps_) {
    next_deadline_ = std::min(next_deadline_, keep.health.next_probe());
  }
}

void TierKeeper::ApplyReads(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  const bool out = keep.health.reads_out();
  const sched::TierLane& lane = parts_.reads->router().lane(tier);
  if (std::exchange(keep.reads_were_out, out) != out) {
    if (out && lane.usable()) parts_.stats->tiers[tier.value].times_out.Add();
    spdlog::warn("a tier whose reads fail {}: tier={} cause={}",
                 out ? "goes out of service" : "works again",
                 parts_.tiers[tier.value]->options().name, CausesOf(tier).reads.Get());
  }
  const bool in_service = !keep.held_out && !out;
  if (lane.held_out() != in_service) return;
  parts_.reads->SetTierInService(tier, in_service, now);
}

void TierKeeper::ApplyWrites(TierId tier, bool others_take) {
  Keep& keep = keeps_[tier.value];
  const bool none = keep.health.writes_out() && others_take;
  if (std::exchange(keep.takes_no_writes, none) == none) return;
  parts_.staging->SetWritesOut(tier, none);
  spdlog::warn("a tier whose writes {} takes {}: tier={}",
               keep.health.writes_hang() ? "do not end" : "fail",
               none ? "no more of them" : "writes again", parts_.tiers[tier.value]->options().name);
}

void TierKeeper::Try(TierId tier) {
  Keep& keep = keeps_[tier.value];
  keep.result = std::make_shared<Result>();
  keep.health.ProbeBegan();
  parts_.stats->tiers[tier.value].probes.Add();
  auto work = [result = keep.result, recheck = parts_.tiers[tier.value]->Recheck()]() mutable {
    absl::Status status = recheck();
    MutexLock lock(&result->mu);
    result->status = std::move(status);
  };
  if (!parts_.threads) return work();
  try {
    // It may never come back, and then it stays behind with all that it touches.
    std::thread(std::move(work)).detach();
  } catch (const std::system_error& e) {
    const MutexLock lock(&keep.result->mu);
    keep.result->status =
        absl::ResourceExhaustedError(std::string("no thread to try it with: ") + e.what());
  }
}

void TierKeeper::TakeResult(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  absl::Status status;
  {
    MutexLock lock(&keep.result->mu);
    if (!keep.result->status.has_value()) return;
    status = *keep.result->status;
  }
  keep.result = nullptr;
  keep.health.ProbeEnded(status.ok(), now);
  const std::string cause(status.message());
  CausesOf(tier).probe.Set(cause);
  if (!status.ok() && !keep.probe_failed) {
    spdlog::warn("a tier was tried again in vain, and will be: tier={} cause={}",
                 parts_.tiers[tier.value]->options().name, cause);
  }
  keep.probe_failed = !status.ok();
  Apply(now);
}

TimeNs TierKeeper::NextDeadline() const {
  TimeNs next = next_deadline_;
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    const TierHealth& health = keeps_[t].health;
    if (health.writes_hang()) continue;  // The end of a write will tell.
    next = std::min(next, health.HangAt(parts_.staging->queue().SilentSince(TierId{t})));
  }
  return next;
}

void TierKeeper::Tick(TimeNs now) {
  next_deadline_ = kNever;
  for (uint32_t t = 0; t < keeps_.size(); ++t) {
    const TierId tier{t};
    TierHealth& health = keeps_[t].health;
    const bool hung = health.writes_hang();
    health.NoteWritesSilentSince(parts_.staging->queue().SilentSince(tier), now);
    if (health.writes_hang() != hung) Apply(now);
    if (keeps_[t].result != nullptr) TakeResult(tier, now);
    if (health.next_probe() <= now) Try(tier);
    next_deadline_ = std::min(next_deadline_, health.next_probe());
    if (keeps_[t].result != nullptr) next_deadline_ = std::min(next_deadline_, now + kLookAtTry);
    if (health.forgets_at() > now) {  // It is degraded until then, and says so no longer.
      next_deadline_ = std::min(next_deadline_, health.forgets_at());
    }
  }
}

void TierKeeper::NoteLate(TierId tier, bool late, TimeNs now) {
  TierEngineStats& stats = parts_.stats->tiers[tier.value];
  const bool was = stats.late.Get() != 0;
  stats.late.Set(late ? 1 : 0);
  if (!late || was) return;
  stats.times_late.Add();
  if (keeps_[tier.value].late_quiet.IsOver(now)) {
    spdlog::warn("reads are late and nothing comes back, a tier may hang: tier={}",
                 parts_.tiers[tier.value]->options().name);
  }
}

void TierKeeper::PublishStats(TimeNs now) {
  for (uint32_t t = 0; t < parts_.tiers.size(); ++t) {
    NoteLate(TierId{t}, parts_.reads->router().Silent(TierId{t}, now), now);
    const Keep& keep = keeps_[t];
    TierEngineStats& stats = parts_.stats->tiers[t];
    stats.held_out.Set(keep.held_out ? 1 : 0);
    stats.failing.Set(keep.health.reads_out() ? 1 : 0);
    stats.writes_out.Set(keep.health.writes_out() ? 1 : 0);
    stats.writes_hang.Set(keep.health.writes_hang() ? 1 : 0);
    stats.degraded.Set(keep.health.state(now) == TierHealth::State::kDegraded ? 1 : 0);
    stats.probing.Set(keep.health.state(now) == TierHealth::State::kProbing ? 1 : 0);
  }
}

}  // namespace kvstream::engine
