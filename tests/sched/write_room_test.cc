// Writes to a tier that is at its capacity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/sched/write_queue.h"

namespace kvstream::sched {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr TierId kTier{0};

class WriteRoomTest : public testing::Test {
 protected:
  // Chunks of 1 MiB, of which four may be in flight.
  WriteRoomTest() : queue_({.lanes = {{.window_bytes = 4 * kMiB}}}) {
    for (uint64_t id = 1; id <= 6; ++id) queue_.Add(StagedId{id}, kMiB, 0, 0);
  }

  std::vector<uint64_t> Started() {
    std::vector<uint64_t> started;
    for (const WriteCommand& command : queue_.Poll({}, false, 0)) {
      const auto* start = std::get_if<StartWrite>(&command);
      if (start != nullptr) started.push_back(start->chunk.value);
    }
    return started;
  }

  WriteQueue queue_;
};

TEST_F(WriteRoomTest, WithoutALimitTheWindowIsTheLimit) {
  EXPECT_THAT(Started(), ElementsAre(1, 2, 3, 4));
}

TEST_F(WriteRoomTest, NoMoreIsInFlightThanThereIsRoomFor) {
  queue_.SetRoom(kTier, 2 * kMiB + 1, /*more_comes=*/false);
  EXPECT_THAT(Started(), ElementsAre(1, 2));
  queue_.OnWritten(StagedId{1}, kTier, true, 0);
  // What was written counts for what the tier has.
  queue_.SetRoom(kTier, kMiB, /*more_comes=*/false);
  EXPECT_THAT(Started(), IsEmpty());
  queue_.SetRoom(kTier, 3 * kMiB, /*more_comes=*/false);
  EXPECT_THAT(Started(), ElementsAre(3, 4));
}

TEST_F(WriteRoomTest, WhereRoomIsBeingMadeAWriteWaitsForIt) {
  queue_.SetRoom(kTier, kMiB - 1, /*more_comes=*/true);
  EXPECT_THAT(Started(), IsEmpty());
  queue_.SetRoom(kTier, kMiB, /*more_comes=*/true);
  EXPECT_THAT(Started(), ElementsAre(1));
}

// Else nothing would ever end that waits for the tier alone.
TEST_F(WriteRoomTest, WhereNoneIsBeingMadeWritesGoOneByOne) {
  queue_.SetRoom(kTier, 0, /*more_comes=*/false);
  EXPECT_THAT(Started(), ElementsAre(1));
  EXPECT_THAT(Started(), IsEmpty());
  queue_.OnWritten(StagedId{1}, kTier, true, 0);
  EXPECT_THAT(Started(), ElementsAre(2));
}

}  // namespace
}  // namespace kvstream::sched
