// A tier as the router sees it: what it has in flight, how fast it is, and whether it may be used.
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "server/base/types.h"
#include "server/sched/read_window.h"

namespace kvstream::sched {

inline constexpr uint32_t kNoRead = UINT32_MAX;

struct LaneOptions {
  // Most bytes in flight.
  uint64_t window_bytes = 32 * kMiB;
  // Bytes of slots that reads nobody waits for may hold before the tier is taken out.
  uint64_t quarantine_bytes = 64 * kMiB;
  // Where set, the window shrinks to what the tier needs, to no less than it moves in this time.
  TimeNs ahead = 0;
};

class TierLane {
 public:
  TierLane(TierId id, const LaneOptions& options)
      : id_(id), options_(options), window_(options.window_bytes, options.ahead) {}

  TierId id() const { return id_; }
  // Bytes that it may have in flight now.
  uint64_t window_bytes() const { return window_.bytes(); }
  uint64_t window_max() const { return window_.max_bytes(); }
  // At most half of the window as it is, since a tier that hangs cannot hold more than its window;
  // but a read, so that one that is lost takes no tier out.
  uint64_t quarantine_limit() const {
    return std::min(options_.quarantine_bytes, std::max(window_.bytes() / 2, largest_read_));
  }
  uint64_t in_flight() const { return in_flight_; }
  uint64_t quarantined() const { return quarantined_; }

  // A window smaller than one segment still lets one through: progress never depends on its size.
  // One that has shrunk lets two through, so that the tier always has a next one to go on with.
  bool HasRoom(uint64_t bytes) const {
    const uint64_t in_all = in_flight_ + bytes;
    return in_flight_ == 0 || in_all <= window_.bytes() ||
           (in_all <= 2 * bytes && in_all <= window_.max_bytes());
  }
  // The same against the most that the config allows.
  bool HasRoomAtMost(uint64_t bytes) const {
    return in_flight_ == 0 || in_flight_ + bytes <= window_.max_bytes();
  }
  // Reads wait because it has no room.
  void NoteLimited() { window_.NoteLimited(); }

  // Out of service: by an operator or the health rules (`held_out`), or by a full quarantine.
  bool usable() const { return !held_out_ && !choked_; }
  bool held_out() const { return held_out_; }
  void set_held_out(bool out) { held_out_ = out; }

  void Began(uint64_t bytes, TimeNs now);
  void Ended(uint64_t bytes, bool ok, TimeNs now);

  void Quarantine(uint64_t bytes) { quarantined_ += bytes; }
  void Unquarantine(uint64_t bytes) { quarantined_ -= bytes; }

  // Compares the quarantine with its limit; true when `usable` changed by it. A tier is taken out
  // only while its oldest read is late and it has given nothing back for a while: a cancelled step
  // leaves a full quarantine on a healthy tier for a moment, and hedged stragglers on one whose
  // latencies have a long tail. It comes back once no more than half the limit is in flight:
  // without claims only completions lower that.
  bool UpdateChoked(bool silent);
  bool choked() const { return choked_; }
  // Since when something has been in flight without an end; kNever: nothing is.
  TimeNs SilentSince() const { return in_flight_ == 0 ? kNever : std::max(last_end_, busy_since_); }
  // When a read last ended; 0 if none has.
  TimeNs last_end() const { return last_end_; }

  // Bytes per second while busy, smoothed over about half a second; 0 until known.
  double rate() const { return rate_; }
  // The same; until it is known, what the reads that have ended so far say.
  double RateSoFar() const;
  // Whether the rate tells what the tier does now: not after a second without reads, until it is
  // measured again.
  bool rate_is_current(TimeNs now) const;
  // The rate as it looks at `now`: less than rate() once completions are overdue.
  double RateAt(TimeNs now) const;

  // A read of `bytes` that began behind `ahead` others took so long.
  void NoteRead(uint64_t ahead, uint64_t bytes, TimeNs took);
  // How long a read of `bytes`, begun at `now`, should take: the tier's latency, after what is in
  // flight. Meaningless until the rate is known.
  TimeNs ExpectedTime(uint64_t bytes, TimeNs now) const;

  // The ends of the list of its reads in flight, in the order of their begin, as indexes of the
  // router's read table, which links them.
  struct ReadsInFlight {
    uint32_t oldest = kNoRead;
    uint32_t newest = kNoRead;
  };
  ReadsInFlight& reads() { return reads_; }
  const ReadsInFlight& reads() const { return reads_; }

 private:
  const TierId id_;
  const LaneOptions options_;
  ReadWindow window_;
  uint64_t in_flight_ = 0;
  uint64_t largest_read_ = 0;
  uint64_t quarantined_ = 0;
  bool held_out_ = false;
  bool choked_ = false;
  double rate_ = 0;
  TimeNs sample_begin_ = 0;  // Moved by the time that it was idle.
  TimeNs idle_since_ = 0;
  TimeNs busy_since_ = 0;
  TimeNs last_end_ = 0;
  uint64_t sample_bytes_ = 0;
  bool resumed_ = false;     // After a second without reads, and no sample since.
  uint64_t last_bytes_ = 0;  // Of the read that ended last.
  double latency_ns_ = 0;    // What reads take beyond their turn at the rate; smoothed.
  ReadsInFlight reads_;
};

}  // namespace kvstream::sched
