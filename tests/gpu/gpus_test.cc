// Mapper and copier over the fake GPU.
#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <map>
#include <random>
#include <vector>

#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/gpu/gpu.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/log_recorder.h"

namespace kvstream::gpu {
namespace {

constexpr TimeNs kPatience = 60 * kSecond;

class GpusTest : public testing::Test {
 protected:
  explicit GpusTest(TimeNs hung_after = Gpus::kHungAfter) : gpus_(driver_.get(), hung_after) {
    gpus_.Start([this](std::span<const CopyDone> done) {
      MutexLock lock(&mu_);
      for (const CopyDone& d : done) answers_[d.id] = d.code;
      changed_.NotifyAll();
    });
  }
  ~GpusTest() override { (void)gpus_.Stop(kNever); }

  absl::StatusOr<RegionRef> Open(RegionSpec spec) {
    std::promise<absl::StatusOr<RegionRef>> promise;
    gpus_.Open(std::move(spec), [&](auto region) { promise.set_value(std::move(region)); });
    return promise.get_future().get();
  }
  void AwaitClosed() {
    std::promise<void> promise;
    gpus_.WhenClosed(0, [&] { promise.set_value(); });
    promise.get_future().wait();
  }
  absl::StatusCode Await(uint64_t id) {
    const TimeNs deadline = Now() + kPatience;
    MutexLock lock(&mu_);
    while (!answers_.contains(id) && changed_.WaitUntil(&mu_, deadline)) {
    }
    return answers_.contains(id) ? answers_.at(id) : absl::StatusCode::kInternal;
  }
  bool Answered(uint64_t id) {
    MutexLock lock(&mu_);
    return answers_.contains(id);
  }
  void AwaitUsable(uint64_t usable) {
    const TimeNs deadline = Now() + kPatience;
    for (size_t i = 0; i < gpus_.size(); ++i) {
      while (gpus_.stats(i).usable.Get() != usable) {
        ASSERT_LT(Now(), deadline);
        sched_yield();
      }
    }
  }
  // Ten blocks of `run` bytes each in two places.
  static RegionSpec Spec(const FakeGpuMemory& memory, uint64_t run) {
    RegionSpec spec;
    spec.gpu_uuid = memory.uuid();
    spec.ipc_handle = memory.handle();
    spec.allocation_bytes = memory.bytes().size();
    spec.block_count = 10;
    spec.tensors = {{0, run, {{0, run}}}, {10 * run, run, {{0, run}}}};
    return spec;
  }

  test::LogRecorder log_;  // Before the threads that log.
  std::shared_ptr<FakeGpuControl> control_ = std::make_shared<FakeGpuControl>();
  std::unique_ptr<Driver> driver_ = OpenFakeDriver(2, control_);
  Gpus gpus_;
  Mutex mu_;
  CondVar changed_;
  std::map<uint64_t, absl::StatusCode> answers_;
};

TEST_F(GpusTest, CopiesBothWaysAreBitExact) {
  constexpr uint64_t kRun = 1000;
  FakeGpuMemory memory(FakeGpuUuid(0), 20 * kRun);
  const RegionRef region = *Open(Spec(memory, kRun));
  std::vector<std::byte> host(6 * kRun);
  std::mt19937 random(3);
  for (std::byte& b : host) b = static_cast<std::byte>(random());
  const std::vector<uint32_t> blocks = {9, 0, 4};
  gpus_.Submit({1, Direction::kToDevice, region, blocks, 0, host.size(), host.data()});
  EXPECT_EQ(Await(1), absl::StatusCode::kOk);
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (size_t tensor = 0; tensor < 2; ++tensor) {
      EXPECT_EQ(std::memcmp(memory.bytes().data() + tensor * 10 * kRun + blocks[b] * kRun,
                            host.data() + (b * 2 + tensor) * kRun, kRun),
                0);
    }
  }
  std::vector<std::byte> back(host.size() - 1500);
  gpus_.Submit({2, Direction::kToHost, region, blocks, 1500, back.size(), back.data()});
  EXPECT_EQ(Await(2), absl::StatusCode::kOk);
  EXPECT_EQ(std::memcmp(back.data(), host.data() + 1500, back.size()), 0);
  EXPECT_EQ(gpus_.stats(0).bytes_in.Get(), host.size());
  EXPECT_EQ(gpus_.stats(0).bytes_out.Get(), back.size());
  EXPECT_EQ(gpus_.stats(0).queued_bytes.Get(), 0u);
}

TEST_F(GpusTest, ManyFragmentsGoInSeveralBatchesAndAnswerOnce) {
  constexpr uint64_t kRun = 16;
  FakeGpuMemory memory(FakeGpuUuid(1), 20 * kRun);
  const RegionRef region = *Open(Spec(memory, kRun));
  std::vector<uint32_t> blocks;
  for (uint32_t i = 0; i < 1000; ++i) blocks.push_back(i * 7 % 10);
  std::vector<std::byte> host(blocks.size() * 2 * kRun);
  control_->held = true;
  gpus_.Submit({1, Direction::kToDevice, region, blocks, 0, host.size(), host.data()});
  gpus_.Submit({2, Direction::kToDevice, region, {}, 5, 100, host.data()});
  EXPECT_FALSE(Answered(1));
  control_->held = false;
  EXPECT_EQ(Await(2), absl::StatusCode::kOk);
  EXPECT_TRUE(Answered(1));
  EXPECT_EQ(gpus_.stats(1).fragments.Get(), 2001u);
  EXPECT_GE(gpus_.stats(1).batches.Get(), 8u);
}

TEST_F(GpusTest, OneMappingServesAllRegionsOfAnAllocation) {
  FakeGpuMemory memory(FakeGpuUuid(0), 20 * 64);
  RegionRef first = *Open(Spec(memory, 64));
  RegionRef second = *Open(Spec(memory, 32));
  EXPECT_EQ(control_->mappings, 1);
  EXPECT_EQ(gpus_.stats(0).regions.Get(), 2u);
  EXPECT_EQ(gpus_.stats(0).mapped_bytes.Get(), 20u * 64);
  first.reset();
  AwaitClosed();
  EXPECT_EQ(control_->mappings, 1);
  second.reset();
  AwaitClosed();
  EXPECT_EQ(control_->mappings, 0);
  EXPECT_EQ(gpus_.stats(0).mapped_bytes.Get(), 0u);
}

TEST_F(GpusTest, ARegionThatIsLetGoStaysOpenUntilItsLastCopy) {
  FakeGpuMemory memory(FakeGpuUuid(0), 20 * 64);
  RegionRef region = *Open(Spec(memory, 64));
  std::vector<std::byte> host(128);
  const std::vector<uint32_t> blocks = {3};
  control_->held = true;
  gpus_.Submit({1, Direction::kToDevice, std::move(region), blocks, 0, 128, host.data()});
  AwaitClosed();
  EXPECT_EQ(control_->mappings, 1);
  control_->held = false;
  EXPECT_EQ(Await(1), absl::StatusCode::kOk);
  AwaitClosed();
  AwaitClosed();
  EXPECT_EQ(control_->mappings, 0);
}

TEST_F(GpusTest, WhatIsNoMemoryOfTheGpuIsRefused) {
  FakeGpuMemory memory(FakeGpuUuid(0), 20 * 64);
  const RegionSpec good = Spec(memory, 64);
  const auto refused = [&](auto change) {
    RegionSpec spec = good;
    change(spec);
    return Open(spec).status().code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(refused([](RegionSpec& s) { s.gpu_uuid = "GPU-none"; }),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused([](RegionSpec& s) { s.gpu_uuid = FakeGpuUuid(1); }), kInvalid);
  EXPECT_EQ(refused([](RegionSpec& s) { s.ipc_handle = std::string(64, 'x'); }), kInvalid);
  EXPECT_EQ(refused([](RegionSpec& s) { s.allocation_bytes += 64; }), kInvalid);
  EXPECT_EQ(refused([](RegionSpec& s) { s.block_count += 1; }), kInvalid);
  std::string stale;
  {
    FakeGpuMemory freed(FakeGpuUuid(0), 20 * 64);
    stale = freed.handle();
  }
  EXPECT_EQ(refused([&](RegionSpec& s) { s.ipc_handle = stale; }), kInvalid);
  const RegionRef region = *Open(good);
  EXPECT_EQ(refused([](RegionSpec& s) { s.allocation_bytes += 64; }), kInvalid);  // Mapped already.
  EXPECT_EQ(control_->mappings, 1);
}

TEST_F(GpusTest, ALostGpuAnswersEverything) {
  FakeGpuMemory memory(FakeGpuUuid(0), 20 * 64);
  const RegionRef region = *Open(Spec(memory, 64));
  std::vector<std::byte> host(128);
  const std::vector<uint32_t> blocks = {3};
  control_->held = true;
  for (uint64_t id = 1; id <= 100; ++id) {
    gpus_.Submit({id, id % 2 == 0 ? Direction::kToHost : Direction::kToDevice, region, blocks, 0,
                  128, host.data()});
  }
  control_->lost = true;
  for (uint64_t id = 1; id <= 100; ++id) EXPECT_EQ(Await(id), absl::StatusCode::kUnavailable) << id;
  gpus_.Submit({101, Direction::kToDevice, region, blocks, 0, 128, host.data()});
  EXPECT_EQ(Await(101), absl::StatusCode::kUnavailable);
  EXPECT_EQ(gpus_.stats(0).usable.Get(), 0u);
  EXPECT_EQ(gpus_.stats(1).usable.Get(), 1u);
  EXPECT_EQ(gpus_.stats(0).queued_bytes.Get(), 0u);
  EXPECT_EQ(Open(Spec(memory, 64)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(GpusTest, ALossIsNoticedWithNothingToCopy) {
  control_->lost = true;
  AwaitUsable(0);
  EXPECT_EQ(gpus_.stats(1).usable.Get(), 0u);
  (void)gpus_.Stop(kNever);
  EXPECT_EQ(log_.Count("a GPU is lost, restart the daemon: gpu=" + FakeGpuUuid(0)), 1u);
}

TEST_F(GpusTest, AFailedOpenTellsALoss) {
  FakeGpuMemory memory(FakeGpuUuid(0), 20 * 64);
  control_->lost = true;
  EXPECT_EQ(Open(Spec(memory, 64)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(gpus_.stats(0).usable.Get(), 0u);
}

TEST_F(GpusTest, MemoryThatCannotBeClosedIsCountedAndStaysMapped) {
  control_->close_fails = true;
  for (int i = 0; i < 3; ++i) {
    FakeGpuMemory memory(FakeGpuUuid(0), 20 * 64);
    ASSERT_TRUE(Open(Spec(memory, 64)).ok());
  }
  AwaitClosed();
  EXPECT_EQ(gpus_.stats(0).unclosed.Get(), 3u);
  EXPECT_EQ(gpus_.stats(0).mapped_bytes.Get(), 3u * 20 * 64);
  EXPECT_EQ(gpus_.stats(0).usable.Get(), 1u);
  EXPECT_EQ(log_.Count("workers' GPU memory cannot be closed: gpu=" + FakeGpuUuid(0)), 1u);
}

class HungGpuTest : public GpusTest {
 protected:
  HungGpuTest() : GpusTest(10 * kMillisecond) {}

  void Submit(uint64_t id, Direction direction = Direction::kToHost) {
    gpus_.Submit({id, direction, region_, blocks_, 0, 128, host_.data()});
  }
  // Asks until what is asked for is begun no more. What was begun before is not answered.
  void AwaitRefused(uint64_t id, Direction direction) {
    for (const TimeNs deadline = Now() + kPatience; Now() < deadline; ++id) {
      Submit(id, direction);
      const TimeNs next = Now() + kMillisecond;
      MutexLock lock(&mu_);
      while (!answers_.contains(id) && changed_.WaitUntil(&mu_, next)) {
      }
      if (answers_.contains(id)) return;
    }
    ADD_FAILURE() << "it does not hang";
  }
  void AwaitHung(uint64_t hung) {
    const TimeNs deadline = Now() + kPatience;
    while (gpus_.stats(0).hung.Get() != hung) {
      ASSERT_LT(Now(), deadline);
      sched_yield();
    }
  }

  FakeGpuMemory memory_{FakeGpuUuid(0), 20 * 64};
  RegionRef region_ = *Open(Spec(memory_, 64));
  std::vector<std::byte> host_ = std::vector<std::byte>(128);
  const std::vector<uint32_t> blocks_ = {3};
};

TEST_F(HungGpuTest, TakesNoMoreUntilItsCopiesEnd) {
  control_->held = true;
  Submit(1);
  AwaitHung(1);
  Submit(2);
  EXPECT_EQ(Await(2), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Answered(1));
  control_->held = false;
  EXPECT_EQ(Await(1), absl::StatusCode::kOk);
  AwaitHung(0);
  Submit(3);
  EXPECT_EQ(Await(3), absl::StatusCode::kOk);
  EXPECT_EQ(gpus_.stats(0).queued_bytes.Get(), 0u);
}

TEST_F(HungGpuTest, IsSaidOnceHoweverManyDirectionsHang) {
  control_->held = true;
  Submit(1, Direction::kToHost);
  Submit(2, Direction::kToDevice);
  AwaitRefused(100, Direction::kToHost);
  AwaitRefused(200, Direction::kToDevice);
  EXPECT_EQ(log_.Count("a GPU hangs, its copies do not end"), 1u);
  control_->held_to_host = true;
  control_->held = false;
  EXPECT_EQ(Await(2), absl::StatusCode::kOk);
  Submit(3, Direction::kToDevice);
  EXPECT_EQ(Await(3), absl::StatusCode::kOk) << "that direction goes on";
  EXPECT_EQ(gpus_.stats(0).hung.Get(), 1u);
  EXPECT_EQ(log_.Count("a GPU that hung goes on"), 0u);
  control_->held_to_host = false;
  EXPECT_EQ(Await(1), absl::StatusCode::kOk);
  AwaitHung(0);
  Submit(4);
  EXPECT_EQ(Await(4), absl::StatusCode::kOk);
  EXPECT_EQ(log_.Count("a GPU that hung goes on"), 1u);
  EXPECT_EQ(log_.Count("a GPU hangs, its copies do not end"), 1u);
}

TEST_F(HungGpuTest, DoesNotHoldUpTheStop) {
  control_->held = true;
  Submit(1);
  EXPECT_FALSE(gpus_.Stop(Now() + 10 * kMillisecond));
  EXPECT_FALSE(Answered(1)) << "its memory may still be written";
}

TEST_F(HungGpuTest, ACloseThatDoesNotReturnDoesNotHoldUpTheStop) {
  control_->close_held = true;
  region_.reset();
  EXPECT_FALSE(gpus_.Stop(Now() + 10 * kMillisecond));
  control_->close_held = false;
  EXPECT_TRUE(gpus_.Stop(kNever));
}

TEST(NoGpuTest, OpeningSaysWhyThereIsNone) {
  const auto driver = OpenFakeDriver(0);
  Gpus gpus(driver.get());
  gpus.Start([](std::span<const CopyDone>) {});
  EXPECT_EQ(gpus.size(), 0u);
  bool replied = false;
  gpus.Open({}, [&](const absl::StatusOr<RegionRef>& region) {
    replied = true;
    EXPECT_EQ(region.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(std::string(region.status().message()).find("no GPU"), std::string::npos);
  });
  EXPECT_TRUE(replied);
}

}  // namespace
}  // namespace kvstream::gpu
