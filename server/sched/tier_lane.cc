#include "server/sched/tier_lane.h"

#include <algorithm>

namespace kvstream::sched {
namespace {

// Of the smoothed latency, per read.
constexpr double kLatencyWeight = 1.0 / 32;
// Long enough to span a block throttle's 100 ms slices, short enough to follow a shared PFS.
constexpr TimeNs kSampleTime = 250 * kMillisecond;
// A shared tier may be another one after so long.
constexpr TimeNs kRateHolds = kSecond;

}  // namespace

void TierLane::Began(uint64_t bytes, TimeNs now) {
  if (in_flight_ == 0) {
    busy_since_ = now;
    sample_begin_ += now - idle_since_;  // Idle time is no measure of the tier.
    resumed_ = resumed_ || now - idle_since_ > kRateHolds;
  }
  in_flight_ += bytes;
  largest_read_ = std::max(largest_read_, bytes);
}

void TierLane::Ended(uint64_t bytes, bool ok, TimeNs now) {
  in_flight_ -= bytes;
  last_end_ = now;
  if (in_flight_ == 0) {
    idle_since_ = now;
    window_.NoteIdle();
  }
  if (!ok) return;
  window_.NoteEnded(bytes, rate_, now);
  last_bytes_ = bytes;
  sample_bytes_ += bytes;
  const TimeNs took = now - sample_begin_;
  if (took < kSampleTime && !(rate_ == 0 && in_flight_ == 0 && took > 0)) return;
  const double sample = static_cast<double>(sample_bytes_) * 1e9 / static_cast<double>(took);
  rate_ = rate_ == 0 ? sample : 0.5 * rate_ + 0.5 * sample;
  resumed_ = false;
  sample_begin_ = now;
  sample_bytes_ = 0;
}

bool TierLane::rate_is_current(TimeNs now) const {
  const bool paused = in_flight_ == 0 && now - idle_since_ > kRateHolds;
  return rate_ > 0 && !resumed_ && !paused;
}

double TierLane::RateSoFar() const {
  if (rate_ > 0 || last_end_ <= sample_begin_) return rate_;
  return static_cast<double>(sample_bytes_) * 1e9 / static_cast<double>(last_end_ - sample_begin_);
}

double TierLane::RateAt(TimeNs now) const {
  const TimeNs took = now - sample_begin_;
  if (in_flight_ == 0 || took < 2 * kSampleTime) return rate_;
  // The sample is overdue. If the next read ended now, this is what it would say.
  const double bytes = static_cast<double>(sample_bytes_ + last_bytes_);
  return std::min(rate_, bytes * 1e9 / static_cast<double>(took));
}

void TierLane::NoteRead(uint64_t ahead, uint64_t bytes, TimeNs took) {
  if (rate_ <= 0) return;
  const double turn = static_cast<double>(ahead + bytes) / rate_ * 1e9;
  const double beyond = std::max(0.0, static_cast<double>(took) - turn);
  latency_ns_ += kLatencyWeight * (beyond - latency_ns_);
}

TimeNs TierLane::ExpectedTime(uint64_t bytes, TimeNs now) const {
  const double turn = static_cast<double>(in_flight_ + bytes) / RateAt(now) * 1e9;
  return static_cast<TimeNs>(turn + latency_ns_);
}

bool TierLane::UpdateChoked(bool silent) {
  const bool before = choked_;
  if (silent && quarantined_ > quarantine_limit()) choked_ = true;
  // By what is in flight, not by what is quarantined: a new waiter for a stuck read takes it out of
  // the quarantine, and that says nothing of the tier.
  if (choked_ && in_flight_ <= quarantine_limit() / 2) choked_ = false;
  return before != choked_;
}

}  // namespace kvstream::sched
