// A tier in virtual time: bandwidth served first come, first served at a rate that may change while
// reads are under way, a latency with jitter and a heavy tail, and faults. It moves no bytes: it
// says when each read ends, and how.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/base/types.h"
#include "tests/support/sim_random.h"

namespace kvstream::sched {

struct SimTierOptions {
  double bytes_per_second = 1e9;
  // The rate from each time on; 0: it hangs until the next change. In ascending order of time.
  struct RateChange {
    TimeNs at = 0;
    double bytes_per_second = 0;
  };
  std::vector<RateChange> changes;
  TimeNs latency = 100 * kMicrosecond;
  TimeNs jitter = 0;
  double tail_chance = 0;
  TimeNs tail = 0;
  // Where set, each read takes this much more, times a lognormal factor of median 1 whose 99th
  // percentile is `lognormal_p99`.
  TimeNs lognormal_latency = 0;
  double lognormal_p99 = 1;
  // Of each read.
  double error_chance = 0;
  double damage_chance = 0;
  double stuck_chance = 0;
  // Of each replica, whenever it is read.
  double missing_replica_chance = 0;
  double damaged_replica_chance = 0;
  // From here on every read fails, those under way too.
  TimeNs dies_at = kNever;
};

class SimTier {
 public:
  // How a read ends. `at` is kNever when it does not.
  struct Fate {
    TimeNs at = 0;
    absl::StatusCode code = absl::StatusCode::kOk;
    bool damaged = false;
  };

  SimTier(const SimTierOptions& options, uint64_t seed)
      : options_(options), seed_(seed), random_(seed) {}

  // REQUIRES: `now` never goes back.
  Fate Read(const ContentId& content, uint64_t bytes, TimeNs now);

  // When `bytes` that begin to flow at `begin`, and have the tier to themselves, have all flowed.
  TimeNs EndOfTransfer(TimeNs begin, uint64_t bytes) const;

 private:
  const SimTierOptions options_;
  const uint64_t seed_;
  SimRandom random_;
  TimeNs busy_until_ = 0;
};

}  // namespace kvstream::sched
