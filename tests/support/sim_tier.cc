#include "tests/support/sim_tier.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvstream::sched {
namespace {

// The 99th percentile of the standard normal distribution.
constexpr double kNormalP99 = 2.3263;

}  // namespace

TimeNs SimTier::EndOfTransfer(TimeNs begin, uint64_t bytes) const {
  double left = static_cast<double>(bytes);
  double rate = options_.bytes_per_second;
  TimeNs at = begin;
  for (size_t i = 0; i <= options_.changes.size(); ++i) {
    const bool last = i == options_.changes.size();
    const TimeNs until = last ? kNever : options_.changes[i].at;
    if (until > at) {
      const double needs_ns = rate > 0 ? std::ceil(left / rate * 1e9) : 1e300;
      if (needs_ns <= static_cast<double>(until - at)) return at + static_cast<TimeNs>(needs_ns);
      left -= rate * static_cast<double>(until - at) / 1e9;
      at = until;
    }
    if (!last) rate = options_.changes[i].bytes_per_second;
  }
  return kNever;
}

SimTier::Fate SimTier::Read(const ContentId& content, uint64_t bytes, TimeNs now) {
  Fate fate;
  if (now >= options_.dies_at) {
    return Fate{now + options_.latency, absl::StatusCode::kUnavailable, false};
  }
  uint64_t low;
  std::memcpy(&low, content.bytes.data(), sizeof low);
  const double replica = SimRandom(seed_ ^ low).Real();
  if (replica < options_.missing_replica_chance) {
    return Fate{now + options_.latency, absl::StatusCode::kNotFound, false};
  }
  fate.damaged = replica < options_.missing_replica_chance + options_.damaged_replica_chance ||
                 random_.Chance(options_.damage_chance);
  if (random_.Chance(options_.error_chance)) fate.code = absl::StatusCode::kUnavailable;
  if (random_.Chance(options_.stuck_chance)) return Fate{kNever, fate.code, fate.damaged};
  busy_until_ = EndOfTransfer(std::max(now, busy_until_), bytes);
  if (busy_until_ == kNever) return Fate{kNever, absl::StatusCode::kUnavailable, false};
  fate.at = busy_until_ + options_.latency;
  if (options_.jitter > 0) {
    fate.at += static_cast<TimeNs>(random_.Below(static_cast<uint64_t>(options_.jitter)));
  }
  if (random_.Chance(options_.tail_chance)) fate.at += options_.tail;
  if (options_.lognormal_latency > 0) {
    const double sigma = std::log(options_.lognormal_p99) / kNormalP99;
    fate.at += static_cast<TimeNs>(static_cast<double>(options_.lognormal_latency) *
                                   std::exp(sigma * random_.Normal()));
  }
  if (fate.at > options_.dies_at) {
    return Fate{options_.dies_at, absl::StatusCode::kUnavailable, false};
  }
  return fate;
}

}  // namespace kvstream::sched
