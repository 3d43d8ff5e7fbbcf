// What is said of the GPUs, and of one that is lost.
#include "server/rpc/gpu_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/rpc/rig.h"
#include "tests/support/fake_gpu.h"

namespace kvstream::rpc {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

class GpuReportTest : public testing::Test {
 protected:
  // As its copies would set them.
  gpu::DeviceStats& StatsOf(size_t gpu) { return const_cast<gpu::DeviceStats&>(gpus_.stats(gpu)); }

  v1::Status StatusOf(Rig& rig) {
    grpc::ClientContext context;
    v1::Status status;
    EXPECT_TRUE(rig.admin->GetStatus(&context, v1::GetStatusRequest(), &status).ok());
    return status;
  }

  const std::unique_ptr<gpu::Driver> driver_ = gpu::OpenFakeDriver(2);
  gpu::Gpus gpus_{driver_.get()};
  const std::string lost_ =
      "GPU " + gpu::FakeGpuUuid(1) + " is lost after a CUDA error: restart the daemon";
};

TEST_F(GpuReportTest, EachGpuHasItsOwnFigures) {
  StatsOf(1).regions.Set(1);
  StatsOf(1).mapped_bytes.Set(2);
  StatsOf(1).bytes_in.Add(3);
  StatsOf(1).bytes_out.Add(4);
  StatsOf(1).queued_bytes.Set(5);
  StatsOf(1).fragments.Add(6);
  StatsOf(1).batches.Add(7);
  StatsOf(1).unclosed.Add(8);
  v1::Status status;
  FillGpus(&gpus_, &status);
  ASSERT_EQ(status.gpus_size(), 2);
  EXPECT_EQ(status.gpu_reason(), "");
  EXPECT_EQ(status.gpus(0).uuid(), gpu::FakeGpuUuid(0));
  EXPECT_EQ(status.gpus(0).regions(), 0u);
  const v1::GpuStatus& gpu = status.gpus(1);
  EXPECT_EQ(gpu.uuid(), gpu::FakeGpuUuid(1));
  EXPECT_EQ(gpu.name(), gpus_.name(1));
  EXPECT_TRUE(gpu.usable());
  EXPECT_EQ(gpu.regions(), 1u);
  EXPECT_EQ(gpu.mapped_bytes(), 2u);
  EXPECT_EQ(gpu.bytes_in(), 3u);
  EXPECT_EQ(gpu.bytes_out(), 4u);
  EXPECT_EQ(gpu.queued_bytes(), 5u);
  EXPECT_EQ(gpu.fragments(), 6u);
  EXPECT_EQ(gpu.batches(), 7u);
  EXPECT_EQ(gpu.unclosed(), 8u);
  EXPECT_EQ(status.conditions_size(), 0);
}

TEST_F(GpuReportTest, AGpuThatFailedItsStartIsACondition) {
  const auto control = std::make_shared<gpu::FakeGpuControl>();
  control->unused = {"GPU-7: probe: it fails", "GPU-8: no memory"};
  for (const uint32_t working : {1, 0}) {  // Whether others work or not.
    const auto driver = gpu::OpenFakeDriver(working, control);
    const gpu::Gpus gpus(driver.get());
    v1::Status status;
    FillGpus(&gpus, &status);
    EXPECT_EQ(status.gpus_size(), static_cast<int>(working));
    EXPECT_THAT(status.conditions(), ElementsAre("a GPU is not used: GPU-7: probe: it fails",
                                                 "a GPU is not used: GPU-8: no memory"));
  }
}

TEST_F(GpuReportTest, WithoutAGpuTheDriverSaysWhy) {
  const auto driver = gpu::OpenFakeDriver(0);
  const gpu::Gpus none(driver.get());
  v1::Status status;
  FillGpus(&none, &status);
  EXPECT_EQ(status.gpus_size(), 0);
  EXPECT_NE(status.gpu_reason(), "");
  EXPECT_EQ(status.gpu_reason(), driver->reason());
}

TEST_F(GpuReportTest, RegionsAndTheirPartsAreTheDaemons) {
  engine::EngineStats stats;
  stats.regions.Set(4);
  stats.landing_regions.Set(3);
  stats.landing_parts_overdue.Set(2);
  stats.landing_timeouts.Add(1);
  v1::RegionsStatus regions;
  FillRegions(stats, &regions);
  EXPECT_EQ(regions.open(), 4u);
  EXPECT_EQ(regions.landing(), 3u);
  EXPECT_EQ(regions.parts_overdue(), 2u);
  EXPECT_EQ(regions.landing_timeouts(), 1u);
}

TEST_F(GpuReportTest, ALostGpuIsAConditionAndTheDaemonIsNotReady) {
  Rig rig(TestLimits(), true, &gpus_);
  rig.server->SetReady(true, {"a degraded mode"});
  EXPECT_TRUE(StatusOf(rig).ready());
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(lost_)));
  StatsOf(1).usable.Set(0);
  const v1::Status status = StatusOf(rig);
  EXPECT_FALSE(status.ready());
  EXPECT_THAT(status.conditions(), Contains("a degraded mode"));
  EXPECT_THAT(status.conditions(), Contains(lost_));
  EXPECT_TRUE(status.gpus(0).usable());
  EXPECT_FALSE(status.gpus(1).usable());
  // A readiness that is set later does not hide it.
  rig.server->SetReady(true, {});
  EXPECT_FALSE(StatusOf(rig).ready());
}

TEST_F(GpuReportTest, AHungGpuIsAConditionAndTheDaemonIsNotReadyUntilItGoesOn) {
  Rig rig(TestLimits(), true, &gpus_);
  rig.server->SetReady(true, {});
  const std::string hangs = "GPU " + gpu::FakeGpuUuid(1) + " hangs: its copies do not end";
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(hangs)));
  StatsOf(1).hung.Set(1);
  const v1::Status status = StatusOf(rig);
  EXPECT_FALSE(status.ready());
  EXPECT_THAT(status.conditions(), Contains(hangs));
  EXPECT_FALSE(status.gpus(0).hung());
  EXPECT_TRUE(status.gpus(1).hung());
  EXPECT_TRUE(status.gpus(1).usable());
  StatsOf(1).hung.Set(0);
  EXPECT_TRUE(StatusOf(rig).ready());
  EXPECT_THAT(StatusOf(rig).conditions(), Not(Contains(hangs)));
}

TEST_F(GpuReportTest, HealthFollowsALostGpuByItself) {
  Rig rig(TestLimits(), true, &gpus_);
  rig.server->SetReady(true, {});
  const auto health = [&rig] { return CallRaw(rig.channel, "/grpc.health.v1.Health/Check", ""); };
  EXPECT_EQ(health(), std::string("\x08\x01", 2));
  StatsOf(0).usable.Set(0);
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoSeconds(kPatience);
  while (health() != std::string("\x08\x02", 2)) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
}

TEST(ReadinessTest, FaultsComeBesideWhatWasSetAndMayGo) {
  std::vector<std::string> faults;
  Readiness readiness([&faults] { return faults; });
  readiness.Set({true, {"degraded"}});
  EXPECT_TRUE(readiness.Get().ready);
  faults = {"broken"};
  EXPECT_FALSE(readiness.Get().ready);
  EXPECT_THAT(readiness.Get().conditions, ElementsAre("degraded", "broken"));
  faults.clear();
  EXPECT_TRUE(readiness.Get().ready);
  readiness.BeginDrain();
  EXPECT_FALSE(readiness.Get().ready);
}

}  // namespace
}  // namespace kvstream::rpc
