#include "server/sched/tier_health.h"

#include <algorithm>

namespace kvstream::sched {

void TierHealth::NoteRead(bool ok, TimeNs now) { Note(reads_, Cause::kReadsFail, ok, now); }

void TierHealth::NoteWrite(bool ok, TimeNs now) { Note(writes_, Cause::kWritesFail, ok, now); }

void TierHealth::NoteWriteSilence(TimeNs silence, TimeNs now) {
  hanging_ = silence >= options_.writes_stuck;
  if (hanging_) PutOut(writes_, Cause::kWritesHang, now);
}

void TierHealth::Note(Direction& direction, Cause cause, bool ok, TimeNs now) {
  if (ok) {
    direction.failures = 0;
    return;
  }
  failed_at_ = now;
  direction.failures += 1;
  if (direction.failures >= options_.failures) PutOut(direction, cause, now);
}

void TierHealth::PutOut(Direction& direction, Cause cause, TimeNs now) {
  if (direction.out) return;
  direction.out = true;
  cause_ = cause;
  failed_at_ = now;
  // It has not been well for long: the last probe told too little.
  wait_ = now - back_at_ < options_.memory ? std::min(2 * wait_, options_.most_between_probes)
                                           : options_.first_probe;
  if (next_probe_ == kNever) next_probe_ = now + wait_;
}

TierHealth::State TierHealth::state(TimeNs now) const {
  if (probing_) return State::kProbing;
  if (reads_.out) return State::kOut;
  return writes_.out || now - failed_at_ < options_.memory ? State::kDegraded : State::kOk;
}

void TierHealth::ProbeEnded(bool ok, TimeNs now) {
  probing_ = false;
  if (!ok) {
    wait_ = std::min(2 * wait_, options_.most_between_probes);
    next_probe_ = now + wait_;
    return;
  }
  reads_ = Direction();
  writes_ = Direction();
  back_at_ = now;
  next_probe_ = kNever;
}

}  // namespace kvstream::sched
