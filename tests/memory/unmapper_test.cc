#include "server/memory/unmapper.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/base/types.h"

namespace kvstream::memory {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

std::unique_ptr<SealedMemory> Make(uint64_t bytes) {
  auto memory = SealedMemory::Create("test", bytes, false);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

bool IsMapped(void* page) {
  unsigned char resident;
  return ::mincore(page, 1, &resident) == 0 || errno != ENOMEM;
}

TEST(UnmapperTest, DoneComesAfterTheMemoryIsUnmapped) {
  Gauge waiting;
  Unmapper unmapper(&waiting);
  auto memory = Make(kMiB);
  void* const page = memory->bytes().data();
  absl::Notification done;
  bool mapped_then = true;
  uint64_t waiting_then = 1;
  unmapper.Give(std::move(memory), [&] {
    mapped_then = IsMapped(page);
    waiting_then = waiting.Get();
    done.Notify();
  });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  EXPECT_FALSE(mapped_then);
  EXPECT_EQ(waiting_then, 0u);
}

TEST(UnmapperTest, WhatWaitsIsCounted) {
  Gauge waiting;
  Unmapper unmapper(&waiting);
  absl::Notification entered, leave;
  unmapper.Give(Make(kMiB), [&] {
    entered.Notify();
    leave.WaitForNotification();
  });
  ASSERT_TRUE(entered.WaitForNotificationWithTimeout(kPatience));
  unmapper.Give(Make(2 * kMiB));
  unmapper.Give(Make(kMiB));
  EXPECT_EQ(waiting.Get(), 3 * kMiB);
  leave.Notify();
  unmapper.Stop();
  EXPECT_EQ(waiting.Get(), 0u);
}

TEST(UnmapperTest, StopFinishesWhatWasGiven) {
  Gauge waiting;
  int done = 0;
  {
    Unmapper unmapper(&waiting);
    for (int i = 0; i < 100; ++i) unmapper.Give(Make(4096), [&done] { ++done; });
  }
  EXPECT_EQ(done, 100);
  EXPECT_EQ(waiting.Get(), 0u);
}

}  // namespace
}  // namespace kvstream::memory
