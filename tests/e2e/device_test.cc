// GPU memory through the daemon, over the fake GPU: real gRPC, real files, real mappings.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <string>
#include <thread>

#include "client/admin.h"
#include "tests/support/device_worker.h"
#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

class DeviceTest : public testing::Test {
 protected:
  explicit DeviceTest(uint32_t gpus = 2) : daemon_(nullptr, gpus) {}

  // Stores, then reads into other blocks: from the staging pool or the tiers, as they are then.
  void RoundTrip(const DeviceWorker::Shape& shape, v1::RegisterMemoryReply::Way way) {
    DeviceWorker worker(daemon_.socket(), shape);
    ASSERT_EQ(worker.region().way, way);
    const auto keys = Keys(1, 8);
    ASSERT_TRUE(worker.Put(keys, worker.Shuffled(8, 1)).ok());
    daemon_.WaitWritten();
    for (uint32_t seed = 2; seed < 5; ++seed) {
      const auto tables = worker.Shuffled(8, seed);
      ASSERT_EQ(worker.Get(keys, tables).leading_valid(), 8u);
      for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(worker.Holds(keys[i], tables[i])) << i;
      EXPECT_TRUE(worker.OnlyTouched(tables));
    }
  }

  test::LogRecorder log_;  // Before the threads that log.
  TestDaemon daemon_;
};

TEST_F(DeviceTest, LongRunsAreFilledStraight) {
  RoundTrip(DirectShape(), v1::RegisterMemoryReply::WAY_DIRECT);
  EXPECT_EQ(daemon_.daemon().gpus().stats(0).bytes_in.Get(), 3u * 8 * 2 * 8 * 64 * 1024);
}

TEST_F(DeviceTest, ShortRunsGoThroughTheLandingBuffer) {
  RoundTrip(LandingShape(), v1::RegisterMemoryReply::WAY_LANDING);
}

TEST_F(DeviceTest, ShortRunsWithoutALandingBufferAreFilledStraight) {
  DeviceWorker::Shape shape = LandingShape();
  shape.landing_parts = 0;
  RoundTrip(shape, v1::RegisterMemoryReply::WAY_DIRECT);
}

TEST_F(DeviceTest, MemoryMayComeByTheHandoffSocket) {
  DeviceWorker::Shape shape = LandingShape(1);
  shape.vmm = true;
  RoundTrip(shape, v1::RegisterMemoryReply::WAY_LANDING);
}

TEST_F(DeviceTest, StagedChunksAreReadBackFromThePool) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  DeviceWorker straight(daemon_.socket(), DirectShape(1));
  for (DeviceWorker* w : {&worker, &straight}) {
    const auto tables = w->Shuffled(4, 1);
    for (size_t i = 0; i < 4; ++i) w->Fill(i + 1, tables[i]);
    const auto store = w->client().Store(w->StoreOf(Keys(1, 4), tables));
    ASSERT_TRUE((*store)->WaitReleased(kPatience));
    // Its bytes are the daemon's from now on.
    const auto others = w->Shuffled(4, 2);
    ASSERT_EQ(w->Get(Keys(1, 4), others).leading_valid(), 4u);
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(w->Holds(i + 1, others[i]));
  }
}

TEST_F(DeviceTest, AChunkForTwoGpusIsReadOnce) {
  DeviceWorker first(daemon_.socket(), DirectShape(0));
  DeviceWorker second(daemon_.socket(), DirectShape(1));
  const auto keys = Keys(1, 8);
  ASSERT_TRUE(first.Put(keys, first.Shuffled(8, 1)).ok());
  daemon_.WaitWritten();
  const auto bytes_read = [&] {
    uint64_t segments = 0;
    for (size_t t = 0; t < 2; ++t) segments += daemon_.stats().tiers[t].segments_read.Get();
    return segments;
  };
  const uint64_t before = bytes_read();
  first.Poison();
  second.Poison();
  const auto tables = first.Shuffled(8, 2);
  std::vector<std::shared_ptr<ReadOperation>> reads;
  for (DeviceWorker* worker : {&first, &second}) {
    v1::ReadStep step = worker->StepOf(keys, tables);
    step.set_step_id(9);
    step.set_ranks(2);
    step.set_join_timeout_ms(60000);
    reads.push_back(*worker->client().ReadStep(step));
  }
  for (const auto& read : reads) ASSERT_TRUE(read->WaitEnded(kPatience));
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(first.Holds(keys[i], tables[i]));
    EXPECT_TRUE(second.Holds(keys[i], tables[i]));
  }
  const uint64_t segments = 8 * first.chunk_bytes() / first.shape().segment_bytes;
  EXPECT_LT(bytes_read() - before, segments * 3 / 2);  // Hedges may read some again.
}

TEST_F(DeviceTest, AWorkerThatDoesNotScatterLosesTheOperationAtItsDeadline) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  const auto keys = Keys(1, 8);
  ASSERT_TRUE(worker.Put(keys, worker.Shuffled(8, 1)).ok());
  daemon_.WaitWritten();
  worker.landing().Hold();
  v1::ReadStep step = worker.StepOf(keys, worker.Shuffled(8, 2));
  step.set_deadline_ms(50);
  const auto read = *worker.client().ReadStep(step);
  ASSERT_TRUE(read->WaitEnded(kPatience));
  EXPECT_EQ(read->status().code(), absl::StatusCode::kDeadlineExceeded);
  daemon_.WaitUntil([&] { return daemon_.stats().pool_used_bytes.Get() == 0; }, "slots are free");
  EXPECT_EQ(daemon_.stats().landing_parts_overdue.Get(), worker.landing().waiting());
  EXPECT_GT(worker.landing().waiting(), 0u);
  // Its late answers free the parts, and what comes next is whole.
  worker.landing().Answer();
  const auto tables = worker.Shuffled(8, 3);
  EXPECT_EQ(worker.Get(keys, tables).leading_valid(), 8u);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(worker.Holds(keys[i], tables[i]));
  EXPECT_EQ(daemon_.stats().landing_parts_overdue.Get(), 0u);
}

TEST_F(DeviceTest, AStoreThatIsNotGatheredEndsAtItsDeadlineAndKeepsNothing) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  worker.landing().Hold();
  v1::Store message = worker.StoreOf(Keys(1, 8), worker.Shuffled(8, 1));
  message.set_deadline_ms(50);
  const auto store = *worker.client().Store(message);
  ASSERT_TRUE(store->WaitEnded(kPatience));
  EXPECT_EQ(store->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(daemon_.stats().chunks_stored.Get(), 0u);
  worker.landing().Answer();
  EXPECT_TRUE(worker.Put(Keys(1, 8), worker.Shuffled(8, 1)).ok());
  const auto tables = worker.Shuffled(8, 2);
  EXPECT_EQ(worker.Get(Keys(1, 8), tables).leading_valid(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(worker.Holds(i + 1, tables[i]));
}

TEST_F(DeviceTest, ALostGpuFailsItsOperationsAndHostMemoryGoesOn) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  DeviceWorker straight(daemon_.socket(), DirectShape(1));
  ASSERT_TRUE(worker.Put(Keys(1, 8), worker.Shuffled(8, 1)).ok());
  ASSERT_TRUE(straight.Put(Keys(1, 8), straight.Shuffled(8, 1)).ok());
  daemon_.gpu_control().lost = true;
  for (DeviceWorker* w : {&worker, &straight}) {
    EXPECT_EQ(w->Get(Keys(1, 8), w->Shuffled(8, 2)).code(), v1::UNAVAILABLE);
    EXPECT_EQ(w->Put(Keys(20, 8), w->Shuffled(8, 2)).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(w->client().RegisterMemory(w->Describe()).status().code(),
              absl::StatusCode::kUnavailable);
  }
  Worker host(daemon_.socket());
  EXPECT_TRUE(host.Put(Keys(100, 4)).ok());
  EXPECT_EQ(host.Get(Keys(100, 4)).leading_valid(), 4u);
  const auto status = host.client().GetStatus();
  ASSERT_TRUE(status.ok());
  EXPECT_FALSE(status->ready());
  for (const v1::GpuStatus& gpu : status->gpus()) EXPECT_FALSE(gpu.usable()) << gpu.uuid();
  for (uint32_t gpu = 0; gpu < 2; ++gpu) {
    EXPECT_EQ(log_.Count("a GPU is lost, restart the daemon: gpu=" + gpu::FakeGpuUuid(gpu)), 1u);
  }
  EXPECT_EQ(daemon_.stats().tiers[0].corrupt_reads.Get(), 0u);  // Nothing was the tiers' fault.
}

TEST_F(DeviceTest, NothingIsClosedOrSaidToBeEndedWhileDmaRuns) {
  auto worker = std::make_unique<DeviceWorker>(daemon_.socket(), DirectShape());
  ASSERT_TRUE(worker->Put(Keys(1, 8), worker->Shuffled(8, 1)).ok());
  daemon_.gpu_control().held = true;
  const auto read = *worker->client().ReadStep(worker->StepOf(Keys(1, 8), worker->Shuffled(8, 2)));
  daemon_.WaitUntil([&] { return daemon_.daemon().gpus().stats(0).queued_bytes.Get() > 0; },
                    "copies are queued");
  ASSERT_TRUE(worker->client().Cancel(*read).ok());
  EXPECT_FALSE(read->WaitEnded(absl::Milliseconds(50)));
  EXPECT_EQ(worker->client().UnregisterMemory(worker->region().region_id).code(),
            absl::StatusCode::kFailedPrecondition);
  std::thread closing([&] { worker.reset(); });  // Waits until the daemon has let go.
  EXPECT_EQ(daemon_.gpu_control().mappings, 1);
  daemon_.gpu_control().held = false;
  closing.join();
  daemon_.WaitUntil([&] { return daemon_.gpu_control().mappings == 0; }, "the memory is closed");
}

TEST_F(DeviceTest, RegionsAreTheSessionsOwnAndCloseOnRequest) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  DeviceWorker other(daemon_.socket(), DirectShape());
  EXPECT_EQ(other.client().UnregisterMemory(worker.region().region_id).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(worker.client().UnregisterMemory(worker.landing_region().region_id).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(daemon_.gpu_control().mappings, 3);
  EXPECT_TRUE(worker.client().UnregisterMemory(worker.region().region_id).ok());
  EXPECT_EQ(daemon_.gpu_control().mappings, 2);
  EXPECT_TRUE(worker.client().UnregisterMemory(worker.landing_region().region_id).ok());
  EXPECT_EQ(daemon_.gpu_control().mappings, 1);
  EXPECT_EQ(worker.client().UnregisterMemory(worker.region().region_id).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(DeviceTest, WhatIsReleasedCanBeClosedLongBeforeItIsDurable) {
  DeviceWorker worker(daemon_.socket(), DirectShape());
  Admin admin(daemon_.socket(), kPatience);
  for (const char* tier : {"nvme", "pfs"}) {
    ASSERT_TRUE(admin.SetTierInService(tier, false).ok());
  }
  v1::Store message = worker.StoreOf(Keys(1, 4), worker.Shuffled(4, 1));
  message.set_want_durable(true);
  const auto store = *worker.client().Store(message);
  ASSERT_TRUE(store->WaitReleased(kPatience));
  EXPECT_TRUE(worker.client().UnregisterMemory(worker.region().region_id).ok());
  EXPECT_EQ(daemon_.gpu_control().mappings, 0);
  EXPECT_FALSE(store->WaitEnded(absl::ZeroDuration()));
  for (const char* tier : {"nvme", "pfs"}) {
    ASSERT_TRUE(admin.SetTierInService(tier, true).ok());
  }
  EXPECT_TRUE(store->WaitEnded(kPatience));
}

TEST_F(DeviceTest, ASessionHasOneLandingBufferOnAGpu) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  for (uint32_t gpu = 0; gpu < 2; ++gpu) {
    gpu::FakeGpuMemory other(gpu::FakeGpuUuid(gpu), 64 * 1024);
    v1::RegisterMemoryRequest request;
    request.set_gpu_uuid(other.uuid());
    request.set_cuda_ipc_handle(other.handle());
    request.set_allocation_bytes(other.bytes().size());
    request.set_landing_parts(1);
    EXPECT_EQ(worker.client().RegisterMemory(request).status().code(),
              gpu == 0 ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kOk);
  }
}

TEST_F(DeviceTest, PlacementsThatAreNotTheRegionsAreRefused) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  DeviceWorker other(daemon_.socket(), DirectShape());
  const auto tables = worker.Shuffled(2, 1);
  const auto refused = [&](auto change, absl::StatusCode code, const std::string& named) {
    v1::ReadStep step = worker.StepOf(Keys(1, 2), tables);
    change(step.mutable_requests(0)->mutable_chunks(1)->mutable_placement()->mutable_device());
    const auto read = *worker.client().ReadStep(step);
    EXPECT_TRUE(read->WaitEnded(kPatience));
    EXPECT_EQ(read->status().code(), code);
    EXPECT_NE(std::string(read->status().message()).find(named), std::string::npos)
        << read->status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  using Device = v1::DeviceBlocks*;
  refused([](Device d) { d->set_region_id(0); }, kInvalid, "region_id: missing");
  refused([](Device d) { d->clear_blocks(); }, kInvalid, "blocks: missing");
  refused([](Device d) { d->set_region_id(999); }, absl::StatusCode::kNotFound, "no such region");
  refused([&](Device d) { d->set_region_id(other.region().region_id); },
          absl::StatusCode::kNotFound, "no such region");
  refused([&](Device d) { d->set_region_id(worker.landing_region().region_id); }, kInvalid,
          "a landing buffer has no blocks");
  refused([](Device d) { d->add_blocks(63); }, kInvalid, "5 blocks of");
  refused([](Device d) { d->set_blocks(0, 64); }, kInvalid, "block 64: the region has 64");
  refused([&](Device d) { d->set_blocks(0, tables[0][0]); }, kInvalid, "overlaps requests[0]");
  refused([](Device d) { d->set_blocks(0, d->blocks(1)); }, kInvalid, "overlaps requests[0]");
}

TEST_F(DeviceTest, AnAnswerThatWasNotAskedForEndsTheSession) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  v1::Scattered scattered;
  scattered.set_region_id(worker.landing_region().region_id);
  scattered.set_part(1);
  scattered.set_sequence(77);
  ASSERT_TRUE(worker.client().SendScattered(scattered).ok());
  daemon_.WaitUntil([&] { return daemon_.stats().sessions_open.Get() == 0; }, "the session ends");
  daemon_.WaitUntil([&] { return !worker.client().session_status().ok(); }, "the client knows");
}

TEST_F(DeviceTest, WhateverEndsOperationsEarlyLaterOnesAreWhole) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  const auto keys = Keys(1, 16);
  ASSERT_TRUE(worker.Put(keys, worker.Shuffled(16, 1)).ok());
  std::mt19937 random(5);
  for (uint32_t round = 0; round < 200; ++round) {
    if (round % 3 == 0) worker.landing().Hold();
    v1::ReadStep step = worker.StepOf(keys, worker.Shuffled(16, round));
    step.set_deadline_ms(1 + random() % 20);
    v1::Store message = worker.StoreOf(Keys(100 + round * 16, 4), worker.Shuffled(4, round));
    message.set_deadline_ms(1 + random() % 20);
    const auto read = *worker.client().ReadStep(step);
    const auto store = *worker.client().Store(message);
    if (random() % 2 == 0) {
      ASSERT_TRUE(worker.client().Cancel(*read).ok());
    }
    if (random() % 2 == 0) worker.landing().Answer();
    ASSERT_TRUE(read->WaitEnded(kPatience));
    ASSERT_TRUE(store->WaitEnded(kPatience));
    worker.landing().Answer();
  }
  const auto tables = worker.Shuffled(16, 999);
  ASSERT_EQ(worker.Get(keys, tables).leading_valid(), 16u);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(worker.Holds(keys[i], tables[i]));
  EXPECT_TRUE(worker.OnlyTouched(tables));
}

// What a killed worker does, in a program of its own.
TEST_F(DeviceTest, WorkersKilledIdleAndInTheMiddleLeaveNothingBehind) {
  DeviceWorker landing(daemon_.socket(), LandingShape());
  DeviceWorker direct(daemon_.socket(), DirectShape());
  ASSERT_TRUE(landing.Put(Keys(1, 8), landing.Shuffled(8, 1)).ok());
  ASSERT_TRUE(direct.Put(Keys(1, 8), direct.Shuffled(8, 1)).ok());
  const int mappings = daemon_.gpu_control().mappings;
  std::mt19937 random(17);
  for (const std::string memory : {"idle", "landing", "direct"}) {
    for (int cycle = 0; cycle < 20; ++cycle) {
      const uint64_t before = daemon_.stats().read_steps.Get();
      const uint64_t rounds = 1 + random() % 3;
      const pid_t pid = fork();
      if (pid == 0) {
        execl(KVSTREAM_VICTIM, KVSTREAM_VICTIM, daemon_.socket().c_str(), memory.c_str(), nullptr);
        _exit(127);
      }
      daemon_.WaitUntil(
          [&] {
            return memory == "idle" ? daemon_.stats().regions.Get() == 5
                                    : daemon_.stats().read_steps.Get() >= before + rounds;
          },
          "the victim is there");
      ASSERT_EQ(kill(pid, SIGKILL), 0);
      ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
      daemon_.WaitUntil([&] { return daemon_.stats().sessions_open.Get() == 2; },
                        "it is forgotten");
      daemon_.WaitUntil([&] { return daemon_.gpu_control().mappings == mappings; },
                        "its memory is closed");
      ASSERT_EQ(daemon_.stats().landing_parts_overdue.Get(), 0u);
    }
  }
  for (DeviceWorker* worker : {&landing, &direct}) {
    const auto tables = worker->Shuffled(8, 2);
    ASSERT_EQ(worker->Get(Keys(1, 8), tables).leading_valid(), 8u);
    for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(worker->Holds(i + 1, tables[i]));
  }
}

TEST(SlowWorkerTest, AWorkerThatKeepsAPartTooLongLosesTheOperation) {
  TestDaemon daemon([](config::Options& o) { o.gpu.landing_ack = 20 * kMillisecond; }, 1);
  DeviceWorker worker(daemon.socket(), LandingShape());
  ASSERT_TRUE(worker.Put(Keys(1, 8), worker.Shuffled(8, 1)).ok());
  worker.landing().Hold();
  const auto read = *worker.client().ReadStep(worker.StepOf(Keys(1, 8), worker.Shuffled(8, 2)));
  ASSERT_TRUE(read->WaitEnded(kPatience));
  EXPECT_EQ(read->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(daemon.stats().landing_timeouts.Get(), 1u);
}

class NoGpuDeviceTest : public DeviceTest {
 protected:
  NoGpuDeviceTest() : DeviceTest(0) {}
};

TEST_F(NoGpuDeviceTest, RegisteringSaysWhyThereIsNone) {
  Worker host(daemon_.socket());
  v1::RegisterMemoryRequest request;
  request.set_gpu_uuid("GPU-1");
  request.set_cuda_ipc_handle(std::string(64, 'x'));
  request.set_allocation_bytes(4096);
  request.set_landing_parts(1);
  const auto region = host.client().RegisterMemory(request);
  EXPECT_EQ(region.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(region.status().message()).find("no GPU"), std::string::npos);
}

}  // namespace
}  // namespace kvstream
