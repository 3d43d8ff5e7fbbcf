// Whether a tier may be asked, judged by how its reads and writes end. Pure.
//
// Reads and writes are judged apart: a full file system refuses writes and still reads. Either is
// out after several failures in a row, writes also when none of them ends for long; only a probe
// brings it back. A tier that goes out again soon after is probed less often, so that one which
// flaps does not cost a failure for every step.
//
// A failure is the tier's: an I/O error, a refusal. A missing or damaged file is not, nor a
// shortage of the daemon's own.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>

#include "server/base/types.h"

namespace kvstream::sched {

struct TierHealthOptions {
  // So many failures in a row put a tier's reads or writes out.
  uint32_t failures = 8;
  // Writes in flight of which none has ended for so long hang. Longer than any pause of a healthy
  // disk or file server.
  TimeNs writes_stuck = 30 * kSecond;
  // What is out is probed after this, then after twice as long each time, up to the most.
  TimeNs first_probe = kSecond;
  TimeNs most_between_probes = 60 * kSecond;
  // How long a failure is remembered, and how long it must go well before the first probe comes
  // early again.
  TimeNs memory = 60 * kSecond;
};

class TierHealth {
 public:
  enum class State : uint8_t { kOk, kDegraded, kOut, kProbing };

  explicit TierHealth(const TierHealthOptions& options = TierHealthOptions())
      : options_(options),
        failed_at_(-options.memory),
        back_at_(-options.memory),
        wait_(options.first_probe) {}

  void NoteRead(bool ok, TimeNs now);
  void NoteWrite(bool ok, TimeNs now);
  // Since when writes have been in flight without one that ended; kNever: none are. While they hang
  // a probe says nothing of them: it is wanted for reads alone.
  void NoteWritesSilentSince(TimeNs since, TimeNs now);
  // When such writes hang.
  TimeNs HangAt(TimeNs since) const {
    return since == kNever ? kNever : since + options_.writes_stuck;
  }

  bool reads_out() const { return reads_.out; }
  bool writes_out() const { return writes_.out; }
  // They are out, and do not end.
  bool writes_hang() const { return writes_.out && hanging_; }
  // Degraded: some failed lately, or writes are out.
  State state(TimeNs now) const;
  // When a failure is forgotten that makes it degraded.
  TimeNs forgets_at() const { return failed_at_ + options_.memory; }

  // When a probe should begin; kNever while none is wanted, or one runs.
  TimeNs next_probe() const { return probing_ || (hanging_ && !reads_.out) ? kNever : next_probe_; }
  void ProbeBegan() { probing_ = true; }
  // One that failed leaves it out; one that went well brings both back, but for writes that hang.
  // The first write that fails then puts writes out again.
  void ProbeEnded(bool ok, TimeNs now);

 private:
  struct Direction {
    uint32_t failures = 0;  // In a row.
    bool out = false;
  };
  void Note(Direction& direction, bool ok, TimeNs now);
  void PutOut(Direction& direction, TimeNs now);

  TierHealthOptions options_;
  Direction reads_;
  Direction writes_;
  TimeNs failed_at_;
  TimeNs back_at_;
  TimeNs wait_;  // Before the next probe.
  TimeNs next_probe_ = kNever;
  bool probing_ = false;
  bool hanging_ = false;  // Writes do.
};

}  // namespace kvstream::sched
