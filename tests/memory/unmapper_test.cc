#include "server/memory/unmapper.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "server/base/types.h"

namespace kvstream::memory {
namespace {

constexpr std::chrono::seconds kPatience(60);

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
  std::promise<void> done;
  bool mapped_then = true;
  uint64_t waiting_then = 1;
  unmapper.Give(std::move(memory), [&] {
    mapped_then = IsMapped(page);
    waiting_then = waiting.Get();
    done.set_value();
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_FALSE(mapped_then);
  EXPECT_EQ(waiting_then, 0u);
}

TEST(UnmapperTest, WhatWaitsIsCounted) {
  Gauge waiting;
  Unmapper unmapper(&waiting);
  std::promise<void> entered, leave;
  unmapper.Give(Make(kMiB), [&] {
    entered.set_value();
    leave.get_future().wait();
  });
  ASSERT_EQ(entered.get_future().wait_for(kPatience), std::future_status::ready);
  unmapper.Give(Make(2 * kMiB));
  unmapper.Give(Make(kMiB));
  EXPECT_EQ(waiting.Get(), 3 * kMiB);
  leave.set_value();
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
