#include "server/engine/tier_keeper.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <utility>

#include "server/base/logging.h"

namespace kvstream::engine {
namespace {

using sched::TierHealth;

// How often it looks at a try that runs.
constexpr TimeNs kLookAtTry = 50 * kMillisecond;

// What says nothing about the tier: a file that is missing, damaged or there already, and what the
// daemon itself is short of.
bool SaysNothing(const tier::Completion& completion) {
  return completion.code == absl::StatusCode::kNotFound ||
         completion.code == absl::StatusCode::kDataLoss || completion.error == EMFILE ||
         completion.error == ENFILE || completion.error == ENOMEM;
}

const char* Describe(TierHealth::Cause cause) {
  switch (cause) {
    case TierHealth::Cause::kNone:
      return "";
    case TierHealth::Cause::kReadsFail:
      return "its reads fail";
    case TierHealth::Cause::kWritesFail:
      return "its writes fail";
    case TierHealth::Cause::kWritesHang:
      return "its writes do not end";
  }
  return "";
}

}  // namespace

void TierKeeper::Note(const tier::Completion& completion, TimeNs now) {
  if (completion.kind == tier::Completion::Kind::kSetAside || SaysNothing(completion)) return;
  TierHealth& health = keeps_[completion.tier.value].health;
  const bool ok = completion.code == absl::StatusCode::kOk ||
                  completion.code == absl::StatusCode::kAlreadyExists;
  if (completion.kind == tier::Completion::Kind::kRead) {
    health.NoteRead(ok, now);
  } else {
    health.NoteWrite(ok, now);
  }
  if (!ok) Apply(completion.tier, now);
}

bool TierKeeper::SetByOperator(TierId tier, bool in_service, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  if (keep.held_out == !in_service) return false;
  keep.held_out = !in_service;
  Apply(tier, now);
  return true;
}

void TierKeeper::Apply(TierId tier, TimeNs now) {
  Keep& keep = keeps_[tier.value];
  const TierHealth& health = keep.health;
  const std::string& name = parts_.tiers[tier.value]->options().name;
  if (std::exchange(keep.writes_were_out, health.writes_out()) != health.writes_out()) {
    parts_.staging->SetWritesOut(tier, health.writes_out());
    spdlog::warn("a tier {}: tier={} cause={}",
                 health.writes_out() ? "takes no more writes" : "takes writes again", name,
                 Describe(health.cause()));
  }
  if (std::exchange(keep.reads_were_out, health.reads_out()) != health.reads_out()) {
    if (health.reads_out()) parts_.stats->tiers[tier.value].times_out.Add();
    spdlog::warn("a tier {} service: tier={} cause={}",
                 health.reads_out() ? "goes out of" : "is back in", name, Describe(health.cause()));
  }
  const bool in_service = !keep.held_out && !health.reads_out();
  if (parts_.reads->router().lane(tier).held_out() == in_service) {
    parts_.reads->SetTierInService(tier, in_service, now);
    if (parts_.reads->router().InService().empty()) spdlog::warn("no tier is in service");
  }
  if (health.next_probe() != kNever) next_deadline_ = std::min(next_deadline_, health.next_probe());
}

void TierKeeper::Try(TierId tier) {
  Keep& keep = keeps_[tier.value];
  keep.result = std::make_shared<Result>();
  keep.health.ProbeBegan();
  parts_.stats->tiers[tier.value].probes.Add();
  // It may never come back, and then it stays behind with all that it touches.
  std::thread([result = keep.result, recheck = parts_.tiers[tier.value]->Recheck()]() mutable {
    absl::Status status = recheck();
    MutexLock lock(&result->mu);
    result->status = std::move(status);
  }).detach();
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
  if (!status.ok()) {
    spdlog::debug("a tier still fails: tier={} cause={}", parts_.tiers[tier.value]->options().name,
                  std::string(status.message()));
  }
  Apply(tier, now);
}

void TierKeeper::Tick(TimeNs now) {
  next_deadline_ = kNever;
  for (uint32_t t = 0; t < parts_.tiers.size(); ++t) {
    const TierId tier{t};
    Keep& keep = keeps_[t];
    const TimeNs silence = parts_.staging->queue().Silence(tier, now);
    keep.health.NoteWriteSilence(silence, now);
    Apply(tier, now);
    if (silence > 0) next_deadline_ = std::min(next_deadline_, now + look_);
    if (keep.result != nullptr) TakeResult(tier, now);
    if (keep.health.next_probe() <= now) Try(tier);
    next_deadline_ = std::min(next_deadline_, keep.health.next_probe());
    if (keep.result != nullptr) next_deadline_ = std::min(next_deadline_, now + kLookAtTry);
  }
}

void TierKeeper::PublishStats(TimeNs now) const {
  for (uint32_t t = 0; t < parts_.tiers.size(); ++t) {
    const Keep& keep = keeps_[t];
    TierEngineStats& stats = parts_.stats->tiers[t];
    stats.held_out.Set(keep.held_out ? 1 : 0);
    stats.failing.Set(keep.health.reads_out() ? 1 : 0);
    stats.writes_out.Set(keep.health.writes_out() ? 1 : 0);
    const bool hang = keep.health.cause() == TierHealth::Cause::kWritesHang;
    stats.writes_hang.Set(keep.health.writes_out() && hang ? 1 : 0);
    stats.degraded.Set(keep.health.state(now) == TierHealth::State::kDegraded ? 1 : 0);
    stats.probing.Set(keep.health.state(now) == TierHealth::State::kProbing ? 1 : 0);
  }
}

}  // namespace kvstream::engine
