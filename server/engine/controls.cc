#include "server/engine/controls.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/base/logging.h"

namespace kvstream::engine {

void Controls::Begin(SetTierInService event, TimeNs now) {
  const sched::TierLane& lane = parts_.reads->router().lane(event.tier);
  const bool was_usable = lane.usable();
  if (parts_.keeper->SetByOperator(event.tier, event.in_service, now)) {
    if (!event.in_service && was_usable) parts_.stats->tiers[event.tier.value].times_out.Add();
    spdlog::warn("an operator {} a tier: tier={} in_service={}",
                 event.in_service ? "brought back" : "took out",
                 parts_.tiers[event.tier.value]->options().name, lane.usable());
  }
  replies_.push_back(
      [reply = std::move(event.reply), usable = lane.usable()]() mutable { reply(usable); });
}

void Controls::Begin(Drain event, TimeNs now) {
  if (drains_.size() >= kDrainsMax) {
    replies_.push_back([reply = std::move(event.reply)]() mutable {
      reply(absl::ResourceExhaustedError("drain: " + std::to_string(kDrainsMax) +
                                         " calls wait for it already"));
    });
    return;
  }
  spdlog::warn("draining: timeout_ms={}", event.timeout / kMillisecond);
  drains_.push_back({now + event.timeout, std::move(event.reply)});
}

void Controls::SendReplies(bool over, const DrainResult& result, TimeNs now) {
  for (auto& reply : replies_) reply();
  replies_.clear();
  for (Waiting& drain : drains_) {
    if (over || drain.deadline <= now) drain.reply(result);
  }
  std::erase_if(drains_, [&](const Waiting& d) { return over || d.deadline <= now; });
}

TimeNs Controls::NextDeadline() const {
  TimeNs next = kNever;
  for (const Waiting& drain : drains_) next = std::min(next, drain.deadline);
  return next;
}

}  // namespace kvstream::engine
