// Workers and GPUs that stop in the middle: what waits for them ends, and nobody else waits.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "client/admin.h"
#include "tests/support/device_worker.h"
#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

class DeviceStallTest : public testing::Test {
 protected:
  explicit DeviceStallTest(TimeNs landing_ack = 600 * kSecond)
      : daemon_([landing_ack](config::Options& o) { o.gpu.landing_ack = landing_ack; }, 2) {}

  void Store(DeviceWorker& worker, const std::vector<uint64_t>& keys) {
    ASSERT_TRUE(worker.Put(keys, worker.Shuffled(keys.size(), 1)).ok());
    daemon_.WaitWritten();
  }
  void AwaitAsked(const FakeLanding& landing) {
    daemon_.WaitUntil([&] { return landing.waiting() > 0; }, "the worker is asked");
  }

  test::LogRecorder log_;  // Before the threads that log.
  TestDaemon daemon_;
};

TEST_F(DeviceStallTest, WhoSharesAChunkWithAStoppedWorkerDoesNotWaitForIt) {
  DeviceWorker stopped(daemon_.socket(), LandingShape(0));
  DeviceWorker other(daemon_.socket(), LandingShape(1));
  const auto keys = Keys(1, 8);
  Store(stopped, keys);
  stopped.landing().Hold();
  const auto tables = other.Shuffled(8, 2);
  std::vector<std::shared_ptr<ReadOperation>> reads;
  for (DeviceWorker* worker : {&stopped, &other}) {
    v1::ReadStep step = worker->StepOf(keys, tables);
    step.set_step_id(9);
    step.set_ranks(2);
    step.set_join_timeout_ms(60000);
    reads.push_back(*worker->client().ReadStep(step));
  }
  ASSERT_TRUE(reads[1]->WaitEnded(kPatience));
  EXPECT_TRUE(reads[1]->status().ok()) << reads[1]->status();
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(other.Holds(keys[i], tables[i]));
  EXPECT_FALSE(reads[0]->WaitEnded(absl::ZeroDuration()));
  // Who comes later, too.
  EXPECT_EQ(other.Get(keys, other.Shuffled(8, 3)).leading_valid(), 8u);
  stopped.landing().Answer();
  ASSERT_TRUE(reads[0]->WaitEnded(kPatience));
  EXPECT_TRUE(reads[0]->status().ok()) << reads[0]->status();
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(stopped.Holds(keys[i], tables[i]));
}

TEST_F(DeviceStallTest, AChunkIsNoHitWhileItIsStillBeingCopied) {
  DeviceWorker storing(daemon_.socket(), DirectShape(0));
  DeviceWorker reading(daemon_.socket(), DirectShape(1));
  const auto keys = Keys(1, 8);
  const auto look = [&] {
    v1::LookupRequest request;
    request.set_namespace_id(reading.namespace_id());
    for (const uint64_t key : keys) {
      AddPrefixHash(reading.At(key, {}).prefix_hash(), &request);
    }
    const auto reply = reading.client().Lookup(std::move(request));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->leading_run() : 0;
  };
  const auto tables = storing.Shuffled(8, 1);
  for (size_t i = 0; i < keys.size(); ++i) storing.Fill(keys[i], tables[i]);
  daemon_.gpu_control().held = true;
  const auto store = *storing.client().Store(storing.StoreOf(keys, tables));
  daemon_.WaitUntil([&] { return daemon_.daemon().gpus().stats(0).queued_bytes.Get() > 0; },
                    "copies are queued");
  EXPECT_EQ(look(), 0u);
  const v1::RequestDone early = reading.Get(keys, reading.Shuffled(8, 2));
  EXPECT_EQ(early.code(), v1::NOT_FOUND);
  EXPECT_EQ(early.leading_valid(), 0u);
  EXPECT_TRUE(reading.OnlyTouched({}));
  EXPECT_FALSE(store->WaitEnded(absl::ZeroDuration()));
  daemon_.gpu_control().held = false;
  ASSERT_TRUE(store->WaitEnded(kPatience));
  EXPECT_TRUE(store->status().ok()) << store->status();
  EXPECT_EQ(look(), 8u);
  const auto others = reading.Shuffled(8, 3);
  EXPECT_EQ(reading.Get(keys, others).leading_valid(), 8u);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(reading.Holds(keys[i], others[i]));
}

// Its own bytes are never copied: it can be told nothing before the other's are.
TEST_F(DeviceStallTest, AStoreThatMetAnotherOfItsKeysHearsWhatBecameOfThat) {
  DeviceWorker first(daemon_.socket(), DirectShape(0));
  DeviceWorker second(daemon_.socket(), DirectShape(1));
  const auto begin = [&](DeviceWorker& worker, const std::vector<uint64_t>& keys) {
    const auto tables = worker.Shuffled(keys.size(), 1);
    for (size_t i = 0; i < keys.size(); ++i) worker.Fill(keys[i], tables[i]);
    return *worker.client().Store(worker.StoreOf(keys, tables));
  };
  const auto queued = [&] { return daemon_.daemon().gpus().stats(0).queued_bytes.Get() > 0; };
  for (const bool cancel : {false, true}) {
    const auto keys = Keys(cancel ? 100 : 1, 4);
    daemon_.gpu_control().held = true;
    const auto original = begin(first, keys);
    daemon_.WaitUntil(queued, "copies are queued");
    const auto follower = begin(second, keys);
    // One of its own ends after it in the daemon, and says that the follower was taken up.
    const auto other = begin(second, Keys(cancel ? 300 : 200, 1));
    daemon_.WaitUntil([&] { return daemon_.stats().operations_running.Get() == 3; }, "all run");
    EXPECT_FALSE(follower->WaitReleased(absl::ZeroDuration()));
    if (cancel) {
      ASSERT_TRUE(first.client().Cancel(*original).ok());
      // Its messages come in order.
      begin(first, Keys(400, 1));
      daemon_.WaitUntil([&] { return daemon_.stats().operations_running.Get() == 4; },
                        "it is cancelled");
    }
    daemon_.gpu_control().held = false;
    for (const auto& store : {original, follower, other}) ASSERT_TRUE(store->WaitEnded(kPatience));
    EXPECT_TRUE(other->status().ok()) << other->status();
    for (const StoreOperation::Chunk& chunk : follower->chunks()) {
      EXPECT_EQ(chunk.code, cancel ? v1::UNAVAILABLE : v1::OK);
      EXPECT_EQ(chunk.existed, !cancel);
    }
    const v1::RequestDone read = second.Get(keys, second.Shuffled(4, 2));
    EXPECT_EQ(read.leading_valid(), cancel ? 0u : 4u);
  }
  daemon_.WaitWritten();
}

// More than are verified at a time: each that is lets another begin.
TEST_F(DeviceStallTest, ManyStagedChunksAreReadBackAtOnce) {
  DeviceWorker::Shape shape = LandingShape();
  shape.blocks = 1024;
  DeviceWorker worker(daemon_.socket(), shape);
  Admin admin(daemon_.socket(), kPatience);
  for (const char* tier : {"nvme", "pfs"}) {
    ASSERT_TRUE(admin.SetTierInService(tier, false).ok());
  }
  const auto keys = Keys(1, 200);
  const auto first = worker.Shuffled(200, 1);
  for (size_t i = 0; i < keys.size(); ++i) worker.Fill(keys[i], first[i]);
  const auto store = *worker.client().Store(worker.StoreOf(keys, first));
  ASSERT_TRUE(store->WaitReleased(kPatience));
  for (uint32_t seed = 2; seed < 5; ++seed) {
    const auto tables = worker.Shuffled(200, seed);
    EXPECT_EQ(worker.Get(keys, tables).leading_valid(), 200u);
    for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(worker.Holds(keys[i], tables[i])) << i;
  }
  for (const char* tier : {"nvme", "pfs"}) {
    ASSERT_TRUE(admin.SetTierInService(tier, true).ok());
  }
  daemon_.WaitWritten();
}

class DeviceStalledTest : public DeviceStallTest {
 protected:
  DeviceStalledTest() : DeviceStallTest(50 * kMillisecond) {}
};

TEST_F(DeviceStalledTest, AStoppedWorkerPinsNothingAndGoesOnWhenItAnswers) {
  DeviceWorker worker(daemon_.socket(), LandingShape());
  const auto keys = Keys(1, 8);
  Store(worker, keys);
  worker.landing().Hold();
  const auto read = *worker.client().ReadStep(worker.StepOf(keys, worker.Shuffled(8, 2)));
  AwaitAsked(worker.landing());
  const auto store = *worker.client().Store(worker.StoreOf(Keys(50, 8), worker.Shuffled(8, 3)));
  for (const auto& status : {(read->WaitEnded(kPatience), read->status()),
                             (store->WaitEnded(kPatience), store->status())}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  // What comes now ends at once, and holds no memory of the pool.
  EXPECT_EQ(worker.Get(keys, worker.Shuffled(8, 4)).code(), v1::DEADLINE_EXCEEDED);
  EXPECT_EQ(worker.Put(Keys(70, 8), worker.Shuffled(8, 5)).code(),
            absl::StatusCode::kDeadlineExceeded);
  daemon_.WaitUntil([&] { return daemon_.stats().pool_used_bytes.Get() == 0; }, "slots are free");
  EXPECT_GT(daemon_.stats().landing_timeouts.Get(), 0u);
  EXPECT_EQ(log_.Count("a worker does not answer for its landing buffer"), 1u);
  worker.landing().Answer();
  daemon_.WaitUntil([&] { return daemon_.stats().landing_parts_overdue.Get() == 0; }, "answered");
  const auto tables = worker.Shuffled(8, 6);
  EXPECT_EQ(worker.Get(keys, tables).leading_valid(), 8u);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(worker.Holds(keys[i], tables[i]));
}

TEST_F(DeviceStalledTest, APartThatOutlivesItsOperationStallsTheBufferToo) {
  DeviceWorker::Shape shape = LandingShape();
  shape.landing_parts = 1;
  DeviceWorker worker(daemon_.socket(), shape);
  const auto keys = Keys(1, 8);
  Store(worker, keys);
  worker.landing().Hold();
  const auto read = *worker.client().ReadStep(worker.StepOf(keys, worker.Shuffled(8, 2)));
  AwaitAsked(worker.landing());
  ASSERT_TRUE(worker.client().Cancel(*read).ok());
  ASSERT_TRUE(read->WaitEnded(kPatience));
  // It would wait far longer than the test does for a part that will not be free.
  v1::ReadStep step = worker.StepOf(keys, worker.Shuffled(8, 3));
  step.set_deadline_ms(600'000);
  const auto waiting = *worker.client().ReadStep(step);
  ASSERT_TRUE(waiting->WaitEnded(kPatience));
  EXPECT_EQ(waiting->status().code(), absl::StatusCode::kDeadlineExceeded);
  worker.landing().Answer();
  daemon_.WaitUntil([&] { return daemon_.stats().landing_parts_overdue.Get() == 0; }, "answered");
  EXPECT_EQ(worker.Get(keys, worker.Shuffled(8, 4)).leading_valid(), 8u);
}

// The client may free its memory once the connection is closed.
TEST_F(DeviceStallTest, TheHandoffConnectionOutlivesTheMappings) {
  auto worker = std::make_unique<DeviceWorker>(daemon_.socket(), LandingShape());
  Store(*worker, Keys(1, 8));
  daemon_.gpu_control().close_held = true;
  absl::Notification closed;
  std::thread closing([&] {
    worker.reset();
    closed.Notify();
  });
  daemon_.WaitUntil([&] { return daemon_.stats().sessions_open.Get() == 0; }, "it is forgotten");
  EXPECT_FALSE(closed.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  EXPECT_EQ(daemon_.gpu_control().mappings, 2);
  daemon_.gpu_control().close_held = false;
  closing.join();
  EXPECT_EQ(daemon_.gpu_control().mappings, 0);
}

// Loads of 64 KiB runs go straight, and stores of them by the landing buffer.
TEST_F(DeviceStallTest, EachDirectionHasItsOwnWay) {
  DeviceWorker::Shape shape = DirectShape();
  shape.landing_parts = 4;
  DeviceWorker worker(daemon_.socket(), shape);
  EXPECT_EQ(worker.region().way, v1::RegisterMemoryReply::WAY_DIRECT);
  EXPECT_EQ(worker.region().store_way, v1::RegisterMemoryReply::WAY_LANDING);
  EXPECT_EQ(worker.client().UnregisterMemory(worker.landing_region().region_id).code(),
            absl::StatusCode::kFailedPrecondition);
  const auto keys = Keys(1, 8);
  Store(worker, keys);
  worker.landing().Hold();  // A load does not ask for it.
  const auto tables = worker.Shuffled(8, 2);
  EXPECT_EQ(worker.Get(keys, tables).leading_valid(), 8u);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(worker.Holds(keys[i], tables[i]));
  EXPECT_EQ(worker.landing().waiting(), 0u);
}

}  // namespace
}  // namespace kvstream
