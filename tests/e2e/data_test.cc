// Chunks through a real daemon: what was stored comes back, byte for byte, from wherever it is.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

// Which tier reads what is then not for the machine's other work to say.
void NoHedges(config::Options& options) {
  options.hedge_after = 60 * kSecond;
  options.routing.hedging = false;
}

TEST(DataTest, StoredChunksComeBackFromBothTiers) {
  TestDaemon daemon(NoHedges);
  Worker worker(daemon.socket());
  const auto keys = Keys(1, 64);
  ASSERT_TRUE(worker.Put(keys).ok());
  daemon.WaitWritten();
  EXPECT_EQ(daemon.Files(0).size(), 64u);
  EXPECT_EQ(daemon.Files(1).size(), 64u);
  EXPECT_EQ(worker.Look(keys), 64u);
  const v1::RequestDone done = worker.Get(keys);
  EXPECT_EQ(done.code(), v1::OK) << done.message();
  EXPECT_EQ(done.leading_valid(), 64u);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(worker.Holds(keys[i], i)) << i;
  EXPECT_GT(daemon.stats().tiers[0].bytes_delivered.Get(), 0u);
  EXPECT_GT(daemon.stats().tiers[1].bytes_delivered.Get(), 0u);
  EXPECT_EQ(daemon.stats().bytes_delivered.Get(), 64 * worker.shape().chunk_bytes);
}

TEST(DataTest, StagedChunksAreReadableBeforeTheyArePublished) {
  // One write at a time: most chunks are still in the pool alone when they are read. That none of
  // them needs a tier is engine_test's to show, with tiers that write nothing.
  TestDaemon daemon([](config::Options& o) {
    for (auto& tier : o.tiers) tier.write_window_bytes = 1;
  });
  Worker worker(daemon.socket());
  ASSERT_TRUE(worker.Put(Keys(1, 32), /*durable=*/false).ok());
  EXPECT_EQ(worker.Look(Keys(1, 32)), 32u);
  EXPECT_EQ(worker.Get(Keys(1, 32)).leading_valid(), 32u);
  for (size_t i = 0; i < 32; ++i) EXPECT_TRUE(worker.Holds(1 + i, i));
}

TEST(DataTest, OddSizesSurvive) {
  for (const uint64_t bytes : {1ul, 4095ul, 4096ul, 65537ul, 262143ul, 1000001ul}) {
    TestDaemon daemon;
    Worker worker(daemon.socket(),
                  {.chunk_bytes = bytes, .segment_bytes = 65536, .buffer_bytes = 8 * bytes});
    ASSERT_TRUE(worker.Put(Keys(1, 8)).ok()) << bytes;
    daemon.WaitWritten();
    EXPECT_EQ(worker.Get(Keys(1, 8)).leading_valid(), 8u) << bytes;
    for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(worker.Holds(1 + i, i)) << bytes;
  }
}

TEST(DataTest, MissingChunksAreMissesAndTheRestIsValid) {
  TestDaemon daemon;
  Worker worker(daemon.socket());
  ASSERT_TRUE(worker.Put({1, 2, 4, 5}).ok());
  EXPECT_EQ(worker.Look({1, 2, 3, 4}), 2u);
  const v1::RequestDone done = worker.Get({1, 2, 3, 4, 6, 5});
  EXPECT_EQ(done.code(), v1::NOT_FOUND);
  EXPECT_EQ(done.leading_valid(), 2u);
  EXPECT_EQ((std::vector<uint32_t>(done.other_valid().begin(), done.other_valid().end())),
            (std::vector<uint32_t>{3, 5}));
  EXPECT_TRUE(worker.Holds(4, 3));
  EXPECT_TRUE(worker.Holds(5, 5));
  EXPECT_TRUE(worker.IsPoisoned(2));
}

TEST(DataTest, AStepLargerThanThePoolFlowsThroughIt) {
  TestDaemon daemon([](config::Options& o) {
    o.pool_bytes = 16 * kMiB;
    o.pool_reserved_bytes = 8 * kMiB;
  });
  Worker worker(daemon.socket(),
                {.chunk_bytes = 2 * kMiB, .segment_bytes = 512 * kKiB, .buffer_bytes = 96 * kMiB});
  const auto keys = Keys(1, 48);
  ASSERT_TRUE(worker.Put(keys).ok());
  daemon.WaitWritten();
  EXPECT_EQ(worker.Get(keys).leading_valid(), 48u);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(worker.Holds(keys[i], i));
}

TEST(DataTest, StoresWithoutRoomAreDroppedAndNothingElseIsLost) {
  const test::LogRecorder log;
  TestDaemon daemon([](config::Options& o) {
    o.pool_bytes = 16 * kMiB;
    o.pool_reserved_bytes = 8 * kMiB;
  });
  Worker worker(daemon.socket(),
                {.chunk_bytes = kMiB, .segment_bytes = kMiB, .buffer_bytes = 32 * kMiB});
  for (size_t i = 0; i < 32; ++i) worker.Fill(1 + i, i);
  v1::Store store = worker.StoreOf(Keys(1, 32));
  store.set_admission_ms(0);
  auto operation = worker.client().Store(std::move(store));
  ASSERT_TRUE(operation.ok());
  ASSERT_TRUE((*operation)->WaitEnded(kPatience));
  EXPECT_EQ((*operation)->status().code(), absl::StatusCode::kResourceExhausted);
  const auto chunks = (*operation)->chunks();
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(chunks[i].code, i < 8 ? v1::OK : v1::RESOURCE_EXHAUSTED) << i;
  }
  EXPECT_EQ(daemon.stats().chunks_dropped.Get(), 24u);
  EXPECT_EQ(worker.client().GetStatus()->operations().chunks_dropped(), 24u);
  EXPECT_EQ(log.Count("stores find no room in the pool, chunks are dropped"), 1u);
  EXPECT_EQ(worker.Look(Keys(1, 32)), 8u);
}

TEST(DataTest, StoringAKeyTwiceWritesItOnce) {
  TestDaemon daemon;
  Worker worker(daemon.socket());
  ASSERT_TRUE(worker.Put(Keys(1, 4)).ok());
  ASSERT_TRUE(worker.Put(Keys(1, 4)).ok());
  EXPECT_EQ(daemon.stats().chunks_stored.Get(), 4u);
  EXPECT_EQ(daemon.stats().chunks_existed.Get(), 4u);
}

// Each worker stores keys of its own, and all look and read for them: only those that agree in all
// that is in a key may find anything.
void ExpectNeverToMeet(const std::vector<std::unique_ptr<Worker>>& workers) {
  for (size_t i = 0; i < workers.size(); ++i) {
    ASSERT_TRUE(workers[i]->Put(Keys(1 + 10 * i, 4)).ok());
  }
  for (size_t stored = 0; stored < workers.size(); ++stored) {
    const auto keys = Keys(1 + 10 * stored, 4);
    for (size_t i = 0; i < workers.size(); ++i) {
      SCOPED_TRACE("stored by " + std::to_string(stored) + ", wanted by " + std::to_string(i));
      Worker& worker = *workers[i];
      EXPECT_EQ(worker.Look(keys), i == stored ? 4u : 0u);
      const v1::RequestDone done = worker.Get(keys);
      EXPECT_EQ(done.code(), i == stored ? v1::OK : v1::NOT_FOUND);
      EXPECT_EQ(done.leading_valid(), i == stored ? 4u : 0u);
      EXPECT_EQ(done.other_valid_size(), 0);
      for (size_t slot = 0; slot < 4; ++slot) {
        EXPECT_TRUE(i == stored ? worker.Holds(keys[slot], slot) : worker.IsPoisoned(slot));
      }
    }
  }
}

constexpr uint64_t kSmallChunk = 64 * 1024;

TEST(DataTest, SaltsNeverMeetAndTheSameOneHits) {
  TestDaemon daemon;
  std::vector<std::unique_ptr<Worker>> workers;
  for (const char* salt : {"", "s1", "s2"}) {
    workers.push_back(std::make_unique<Worker>(
        daemon.socket(),
        Worker::Shape{.chunk_bytes = kSmallChunk, .buffer_bytes = 8 * kSmallChunk, .salt = salt}));
  }
  ExpectNeverToMeet(workers);
  // Another session of the same salt.
  Worker again(daemon.socket(), workers[1]->shape());
  EXPECT_EQ(again.Look(Keys(11, 4)), 4u);
  EXPECT_EQ(again.Get(Keys(11, 4)).leading_valid(), 4u);
  EXPECT_TRUE(again.Holds(11, 0));
}

TEST(DataTest, NamespacesThatDifferInOneFieldNeverMeet) {
  using Namespace = v1::Namespace*;
  const std::vector<std::function<void(Namespace)>> changes = {
      [](Namespace) {},
      [](Namespace n) { n->set_model("tess"); },
      [](Namespace n) { n->set_weights_fingerprint("w1"); },
      [](Namespace n) { n->set_kv_dtype("float16"); },
      [](Namespace n) { n->set_quantization("awq"); },
      [](Namespace n) { n->set_rope("theta=10000"); },
      [](Namespace n) { n->set_layout("layer-major"); },
      [](Namespace n) { n->add_strides(128); },
      [](Namespace n) { n->set_page_tokens(16); },
      [](Namespace n) { n->set_chunk_tokens(128); },
      [](Namespace n) { n->set_tensor_parallel(2); },
      [](Namespace n) { n->set_pipeline_parallel(2); },
      [](Namespace n) { n->set_context_parallel(2); },
      [](Namespace n) { n->mutable_groups(0)->set_name("full"); },
      [](Namespace n) { n->mutable_groups(0)->set_replicated(true); },
      [](Namespace n) { (*n->mutable_extra())["a"] = "b"; }};
  TestDaemon daemon;
  std::vector<std::unique_ptr<Worker>> workers;
  for (const auto& change : changes) {
    workers.push_back(
        std::make_unique<Worker>(daemon.socket(), Worker::Shape{.chunk_bytes = kSmallChunk,
                                                                .buffer_bytes = 8 * kSmallChunk,
                                                                .change_namespace = change}));
  }
  ExpectNeverToMeet(workers);
}

TEST(DataTest, ARestartedDaemonThatFindsNothingServesOldFilesOnceTheirKeyIsStoredAgain) {
  TestDaemon daemon;
  {
    Worker worker(daemon.socket());
    ASSERT_TRUE(worker.Put(Keys(1, 8)).ok());
  }
  daemon.Stop();
  // Nothing is found while the tiers' own folders are away.
  for (size_t t = 0; t < 2; ++t)
    std::filesystem::rename(daemon.root(t) / "v1", daemon.root(t) / "was");
  daemon.Restart();
  for (size_t t = 0; t < 2; ++t) {
    daemon.WaitUntil([&] { return daemon.stats().tiers[t].restoring.Get() == 0; }, "it has looked");
    std::filesystem::rename(daemon.root(t) / "v1", daemon.root(t) / "new");
    std::filesystem::rename(daemon.root(t) / "was", daemon.root(t) / "v1");
  }
  Worker worker(daemon.socket());
  EXPECT_EQ(worker.Look(Keys(1, 8)), 0u);
  ASSERT_TRUE(worker.Put(Keys(1, 8)).ok());
  daemon.WaitWritten();
  EXPECT_EQ(daemon.stats().tiers[0].chunks_existed.Get(), 8u);
  EXPECT_EQ(worker.Get(Keys(1, 8)).leading_valid(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(worker.Holds(1 + i, i));
}

TEST(DataTest, RanksOfAJointStepShareTheReadsOfOneChunk) {
  TestDaemon daemon(NoHedges);
  Worker first(daemon.socket());
  Worker second(daemon.socket());
  const auto keys = Keys(1, 16);
  ASSERT_TRUE(first.Put(keys).ok());
  daemon.WaitWritten();
  std::vector<std::shared_ptr<ReadOperation>> operations;
  for (Worker* worker : {&first, &second}) {
    v1::ReadStep step = worker->StepOf(keys);
    step.set_mode(v1::ReadStep::MODE_JOINT);
    step.set_step_id(7);
    step.set_ranks(2);
    step.set_join_timeout_ms(60000);
    for (size_t i = 0; i < keys.size(); ++i) worker->Poison(i);
    auto operation = worker->client().ReadStep(std::move(step));
    ASSERT_TRUE(operation.ok());
    operations.push_back(*operation);
  }
  for (auto& operation : operations) {
    ASSERT_TRUE(operation->WaitEnded(kPatience));
    EXPECT_TRUE(operation->status().ok()) << operation->status();
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(first.Holds(keys[i], i));
    EXPECT_TRUE(second.Holds(keys[i], i));
  }
  const uint64_t segments =
      daemon.stats().tiers[0].segments_read.Get() + daemon.stats().tiers[1].segments_read.Get();
  EXPECT_EQ(segments, 16 * 4u);
}

TEST(DataTest, ADeadlineEndsAStepThatWaitsForItsRanks) {
  TestDaemon daemon;
  Worker worker(daemon.socket());
  ASSERT_TRUE(worker.Put(Keys(1, 2)).ok());
  v1::ReadStep step = worker.StepOf(Keys(1, 2));
  step.set_mode(v1::ReadStep::MODE_JOINT);
  step.set_step_id(1);
  step.set_ranks(2);
  step.set_join_timeout_ms(60000);
  step.set_deadline_ms(20);
  auto operation = worker.client().ReadStep(std::move(step));
  ASSERT_TRUE(operation.ok());
  ASSERT_TRUE((*operation)->WaitEnded(kPatience));
  EXPECT_EQ((*operation)->status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace kvstream
