// Which operations of a tier go wrong, and how: by rate, from a seed, or by script. The same plan
// drives the fake tiers (fake_tier.h) and the real ones, between their loops and the kernel
// (faulty_queue.h). It lives in tests alone: nothing of it is in the daemon.
//
// Thread rule: any thread. The same calls in the same order get the same faults.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "tests/support/sim_random.h"

namespace kvstream::test {

struct Fault {
  enum class Kind : uint8_t {
    kNone,
    // Ends with `error`.
    kErrno,
    // Moves `at` bytes and no more: a read finds the end of the file there; a write leaves the rest
    // out and says so, or, where it is torn, does not say so.
    kShort,
    // Ends `delay` later than it would.
    kDelay,
    // Never ends.
    kNever,
    // The byte at `at`, modulo the length, is another.
    kCorrupt,
  };
  Kind kind = Kind::kNone;
  int error = EIO;
  uint64_t at = 0;
  TimeNs delay = 0;

  // What was asked for does not happen, or not as it should: all but kNone and kDelay.
  bool harms() const { return kind != Kind::kNone && kind != Kind::kDelay; }
};

// What an operation does: moves bytes one way or the other, or works on names and descriptors.
enum class FaultPoint : uint8_t { kRead, kWrite, kName };

class FaultPlan {
 public:
  // Chances of one operation.
  struct Rates {
    double error = 0;
    double short_count = 0;
    double delay = 0;
    double never = 0;
    double corrupt = 0;
    // One of them is the errno.
    std::vector<int> errors = {EIO};
    TimeNs delay_max = 10 * kMillisecond;
  };

  explicit FaultPlan(uint64_t seed = 1) : random_(seed) {}

  // From now on.
  void SetRates(FaultPoint point, Rates rates);
  // Of the operation with this number at this point, counted from 0; goes before the rates.
  void Script(FaultPoint point, uint64_t number, const Fault& fault);
  // No more faults.
  void Clear();

  // Asked once for each operation, as it is accepted. `bytes` is its length, 0 at kName.
  Fault Next(FaultPoint point, uint64_t bytes);

 private:
  static constexpr size_t kPoints = 3;

  Mutex mu_;
  SimRandom random_ ABSL_GUARDED_BY(mu_);
  std::array<Rates, kPoints> rates_ ABSL_GUARDED_BY(mu_);
  std::array<uint64_t, kPoints> seen_ ABSL_GUARDED_BY(mu_) = {};
  std::map<std::pair<FaultPoint, uint64_t>, Fault> script_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::test
