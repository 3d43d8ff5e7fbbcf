#include "server/sched/tier_lane.h"

namespace kvstream::sched {
namespace {

// Long enough to span a block throttle's 100 ms slices, short enough to follow a shared PFS.
constexpr TimeNs kSampleTime = 250 * kMillisecond;

}  // namespace

void TierLane::Began(uint64_t bytes, TimeNs now) {
  if (in_flight_ == 0) sample_begin_ += now - idle_since_;  // Idle time is no measure of the tier.
  in_flight_ += bytes;
}

void TierLane::Ended(uint64_t bytes, bool ok, TimeNs now) {
  in_flight_ -= bytes;
  if (in_flight_ == 0) idle_since_ = now;
  if (!ok) return;
  sample_bytes_ += bytes;
  const TimeNs took = now - sample_begin_;
  if (took < kSampleTime && !(rate_ == 0 && in_flight_ == 0 && took > 0)) return;
  const double sample = static_cast<double>(sample_bytes_) * 1e9 / static_cast<double>(took);
  rate_ = rate_ == 0 ? sample : 0.5 * rate_ + 0.5 * sample;
  sample_begin_ = now;
  sample_bytes_ = 0;
}

bool TierLane::UpdateChoked(bool late) {
  const bool before = choked_;
  if (late && quarantined_ > options_.quarantine_bytes) choked_ = true;
  // By what is in flight, not by what is quarantined: a new waiter for a stuck read takes it out of
  // the quarantine, and that says nothing of the tier.
  if (choked_ && in_flight_ <= options_.quarantine_bytes / 2) choked_ = false;
  return before != choked_;
}

}  // namespace kvstream::sched
