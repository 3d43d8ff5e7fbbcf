#include "client/monotonic_condition.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvstream {
namespace {

TEST(MonotonicConditionTest, EndsWhenItHoldsAndNotBefore) {
  absl::Mutex mu;
  MonotonicCondition changed;
  bool done = false;
  std::thread other([&] {
    absl::MutexLock lock(&mu);
    done = true;
    changed.NotifyAll();
  });
  {
    absl::MutexLock lock(&mu);
    EXPECT_TRUE(changed.Wait(&mu, absl::InfiniteDuration(), [&] { return done; }));
    EXPECT_TRUE(changed.Wait(&mu, absl::ZeroDuration(), [&] { return done; }));
    EXPECT_FALSE(changed.Wait(&mu, absl::Milliseconds(1), [] { return false; }));
    EXPECT_FALSE(changed.Wait(&mu, -absl::InfiniteDuration(), [] { return false; }));
  }
  other.join();
}

}  // namespace
}  // namespace kvstream
