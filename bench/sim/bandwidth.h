// What a tier can move, as a function of time: constant between changes that come from a seed. And
// the bound: the first time at which the integral of several such functions reaches a step's bytes.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "server/base/types.h"
#include "tests/support/sim_random.h"

namespace kvstream::sim {

struct BandwidthOptions {
  enum class Kind {
    kConstant,
    // At `low` of itself for half of every period.
    kPeriodic,
    // In bursts of one period on average, two periods apart on average, at `low` to `high` of
    // itself.
    kBursty,
    // A random walk between `low` and 1 of itself, a step every period.
    kDrifting,
  };
  Kind kind = Kind::kConstant;
  double bytes_per_second = 1e9;
  double low = 1;
  double high = 1;
  TimeNs period = kSecond;
  uint64_t seed = 1;
};

class Bandwidth {
 public:
  explicit Bandwidth(const BandwidthOptions& options);

  // Bytes per second at a time.
  double At(TimeNs at);
  // When `bytes` that begin to flow at `begin`, and have all of it to themselves, have flowed.
  TimeNs EndOf(TimeNs begin, double bytes);
  // When it changes next after `at`; kNever if it does not.
  TimeNs NextChange(TimeNs at);

 private:
  struct Change {
    TimeNs at;
    double rate;
  };

  // The change in force at a time. Makes those that are not there yet.
  size_t IndexAt(TimeNs at);
  void MakeNext();

  const BandwidthOptions options_;
  SimRandom random_;
  std::vector<Change> changes_;  // In ascending order, the first at time zero.
  double factor_ = 1;
};

// Seconds from `begin` until all together could have moved `bytes`.
double BoundSeconds(std::span<Bandwidth* const> tiers, TimeNs begin, double bytes);

}  // namespace kvstream::sim
