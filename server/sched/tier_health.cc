#include "server/sched/tier_health.h"

#include <algorithm>

namespace kvstream::sched {

void TierHealth::NoteRead(bool ok, TimeNs now) { Note(reads_, ok, now); }

void TierHealth::NoteWrite(bool ok, TimeNs now) { Note(writes_, ok, now); }

void TierHealth::NoteWritesSilentSince(TimeNs since, TimeNs now) {
  hanging_ = HangAt(since) <= now;
  if (hanging_) PutOut(writes_, now);
}

void TierHealth::Note(Direction& direction, bool ok, TimeNs now) {
  if (ok) {
    direction.failures = 0;
    return;
  }
  failed_at_ = now;
  direction.failures += 1;
  if (direction.failures >= options_.failures) PutOut(direction, now);
}

void TierHealth::PutOut(Direction& direction, TimeNs now) {
  if (direction.out) return;
  const bool was_out = reads_.out || writes_.out;
  direction.out = true;
  failed_at_ = now;
  if (was_out) return;  // A probe is on its way.
  // It has not been well for long: the last probe told too little.
  wait_ = now - back_at_ < options_.memory ? std::min(2 * wait_, options_.most_between_probes)
                                           : options_.first_probe;
  next_probe_ = now + wait_;
}

TierHealth::State TierHealth::state(TimeNs now) const {
  if (probing_) return State::kProbing;
  if (reads_.out) return State::kOut;
  return writes_.out || now < forgets_at() ? State::kDegraded : State::kOk;
}

void TierHealth::ProbeEnded(bool ok, TimeNs now) {
  probing_ = false;
  if (!ok) {
    wait_ = std::min(2 * wait_, options_.most_between_probes);
    next_probe_ = now + wait_;
    return;
  }
  reads_ = Direction();
  back_at_ = now;
  if (writes_.out && hanging_) {
    next_probe_ = now + wait_;  // Due once they have ended.
    return;
  }
  if (writes_.out) writes_ = {.failures = options_.failures - 1, .out = false};
  next_probe_ = kNever;
}

}  // namespace kvstream::sched
