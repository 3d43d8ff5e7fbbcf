// The window that finds the fewest bytes in flight that keep a tier's throughput.
#include "server/sched/read_window.h"

#include <algorithm>
#include <deque>

#include "gtest/gtest.h"
#include "tests/support/sim_random.h"

namespace kvstream::sched {
namespace {

constexpr uint64_t kSegment = 4 * kMiB;

struct Tier {
  double rate = 1e9;
  // What each read takes besides its turn; many at once.
  TimeNs latency = 0;
  // A throttle that lets bytes through only every so often.
  TimeNs slice = 0;
};

struct Outcome {
  double bytes_per_second = 0;
  uint64_t window = 0;
};

// Keeps the window of a tier full.
class Driver {
 public:
  explicit Driver(ReadWindow* window) : window_(*window) {}

  // For so long, then measures for ten seconds.
  Outcome Drive(const Tier& tier, TimeNs warm) {
    uint64_t moved = 0;
    const TimeNs measured_from = now_ + warm;
    while (now_ < measured_from + 10 * kSecond) {
      while ((ends_.size() + 1) * kSegment <= std::max(window_.bytes(), 2 * kSegment)) Begin(tier);
      window_.NoteLimited();
      now_ = ends_.front();
      ends_.pop_front();
      if (now_ >= measured_from) moved += kSegment;
      window_.NoteEnded(kSegment, tier.rate, now_);
    }
    return {static_cast<double>(moved) / 10, window_.bytes()};
  }

 private:
  void Begin(const Tier& tier) {
    free_at_ = std::max(now_, free_at_) +
               static_cast<TimeNs>(static_cast<double>(kSegment) / tier.rate * 1e9);
    TimeNs end = free_at_;
    if (tier.slice > 0) end = (end / tier.slice + 1) * tier.slice;
    end += static_cast<TimeNs>(static_cast<double>(tier.latency) * (0.5 + random_.Real()));
    ends_.insert(std::upper_bound(ends_.begin(), ends_.end(), end), end);
  }

  ReadWindow& window_;
  SimRandom random_{1};
  std::deque<TimeNs> ends_;
  TimeNs now_ = kSecond;
  TimeNs free_at_ = 0;
};

TEST(ReadWindowTest, ShrinksToWhatAheadAllows) {
  ReadWindow window(256 * kMiB, 50 * kMillisecond);
  const Outcome outcome =
      Driver(&window).Drive({.rate = 1e9, .latency = kMillisecond}, 60 * kSecond);
  EXPECT_NEAR(outcome.bytes_per_second, 1e9, 1e7);
  // Half as large again while it looks whether more would help.
  EXPECT_LE(outcome.window, static_cast<uint64_t>(1.5 * 0.05 * 1e9) + 1);
}

TEST(ReadWindowTest, KeepsTheThroughputOfATierWithLongLatency) {
  for (const TimeNs latency : {50 * kMillisecond, 100 * kMillisecond, 300 * kMillisecond}) {
    ReadWindow window(kGiB, 20 * kMillisecond);
    const Outcome outcome = Driver(&window).Drive({.rate = 1e9, .latency = latency}, 120 * kSecond);
    EXPECT_GE(outcome.bytes_per_second, 0.93e9) << latency;
    EXPECT_LE(static_cast<double>(outcome.window), 3.5 * static_cast<double>(latency)) << latency;
  }
}

TEST(ReadWindowTest, GrowsWhenTheTierBecomesSlowToAnswer) {
  ReadWindow window(kGiB, 20 * kMillisecond);
  Driver driver(&window);
  driver.Drive({.rate = 1e9, .latency = kMillisecond}, 120 * kSecond);
  EXPECT_LE(window.bytes(), 32 * kMiB);
  const Outcome outcome = driver.Drive({.rate = 1e9, .latency = 300 * kMillisecond}, 120 * kSecond);
  EXPECT_GE(outcome.bytes_per_second, 0.93e9);
}

TEST(ReadWindowTest, ShrinksUnderAThrottlesSlicesToo) {
  ReadWindow window(256 * kMiB, 100 * kMillisecond);
  const Outcome outcome =
      Driver(&window).Drive({.rate = 1e8, .slice = 100 * kMillisecond}, 300 * kSecond);
  EXPECT_GE(outcome.bytes_per_second, 0.97e8);
  EXPECT_LE(outcome.window, 64 * kMiB);
}

TEST(ReadWindowTest, StaysWhereNothingIsHeldBackOrNothingIsAsked) {
  for (const TimeNs ahead : {TimeNs{0}, 10 * kMillisecond}) {
    ReadWindow window(64 * kMiB, ahead);
    for (TimeNs now = kSecond; now < 100 * kSecond; now += kMillisecond) {
      if (ahead == 0) window.NoteLimited();
      window.NoteEnded(kMiB, 1e9, now);
    }
    EXPECT_EQ(window.bytes(), 64 * kMiB) << ahead;
  }
}

TEST(ReadWindowTest, IdleTimeIsNoEvidence) {
  ReadWindow window(64 * kMiB, 10 * kMillisecond);
  for (TimeNs now = kSecond; now < 1000 * kSecond; now += 200 * kMillisecond) {
    window.NoteLimited();
    window.NoteEnded(kMiB, 1e9, now);
    window.NoteIdle();
  }
  EXPECT_EQ(window.bytes(), 64 * kMiB);
}

TEST(ReadWindowTest, ComesBackFromTwoReadsAtATime) {
  ReadWindow window(256 * kMiB, 20 * kMillisecond);
  Driver driver(&window);
  driver.Drive({.rate = 5e7, .latency = kMillisecond}, 300 * kSecond);
  EXPECT_GE(window.bytes(), 2 * kSegment);
  // Two reads at a time would move a sixth of it.
  const Outcome outcome = driver.Drive({.rate = 1e9, .latency = 50 * kMillisecond}, 120 * kSecond);
  EXPECT_GE(outcome.bytes_per_second, 0.93e9);
}

}  // namespace
}  // namespace kvstream::sched
