#include "server/base/check.h"

#include <gtest/gtest.h>

namespace kvstream {
namespace {

TEST(CheckDeathTest, BrokenInvariantEndsTheProcessAndNamesItself) {
  EXPECT_DEATH(KV_CHECK(1 + 1 == 3), "invariant broken at .*check_test.cc:.*1 \\+ 1 == 3");
}

TEST(CheckTest, ConditionIsEvaluatedOnce) {
  int evaluated = 0;
  KV_CHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

}  // namespace
}  // namespace kvstream
