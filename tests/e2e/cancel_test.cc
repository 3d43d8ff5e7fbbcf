// Cancel and death at every stage: after quiesced no byte of the client's memory changes, and
// nothing is left behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "server/base/clock.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

// Waits without sleeping, so that cancels land at every stage of a step of about a millisecond.
void Spin(TimeNs duration) {
  const TimeNs until = Now() + duration;
  while (Now() < until) std::this_thread::yield();
}

int Rounds(int usual) {
  const char* rounds = std::getenv("KVSTREAM_CANCEL_ROUNDS");
  return rounds != nullptr ? std::atoi(rounds) : usual;
}

TEST(CancelTest, AfterQuiescedNoByteOfTheBufferChanges) {
  TestDaemon daemon([](config::Options& o) { o.copy_threads = 2; });
  Worker worker(
      daemon.socket(),
      {.chunk_bytes = 64 * 1024, .segment_bytes = 16 * 1024, .buffer_bytes = 16 * 64 * 1024});
  const auto keys = Keys(1, 8);
  ASSERT_TRUE(worker.Put(keys).ok());
  daemon.WaitWritten();
  std::mt19937_64 random(20261129);
  // Two halves of the buffer in turn: while a step runs in one, the other must stay as it was left
  // when its own step had quiesced.
  int cancelled = 0;
  for (int round = 0; round < Rounds(10000); ++round) {
    const size_t half = round % 2 == 0 ? 0 : keys.size();
    const size_t other = keys.size() - half;
    auto operation = worker.client().ReadStep(worker.StepOf(keys, half));
    ASSERT_TRUE(operation.ok()) << operation.status();
    Spin(static_cast<TimeNs>(random() % (1500 * kMicrosecond)));
    ASSERT_TRUE(worker.client().Cancel(**operation).ok());
    ASSERT_TRUE((*operation)->WaitEnded(kPatience));
    const v1::RequestDone done = (*operation)->results().at(0);
    cancelled += done.code() == v1::CANCELLED ? 1 : 0;
    for (uint32_t i = 0; i < done.leading_valid(); ++i) {
      ASSERT_TRUE(worker.Holds(keys[i], half + i)) << "round " << round;
    }
    for (const uint32_t i : done.other_valid()) {
      ASSERT_TRUE(worker.Holds(keys[i], half + i)) << "round " << round;
    }
    for (size_t i = 0; i < keys.size() && round > 0; ++i) {
      ASSERT_TRUE(worker.IsPoisoned(other + i)) << "round " << round;
    }
    for (size_t i = 0; i < keys.size(); ++i) worker.Poison(half + i);
  }
  // The spins must have hit steps under way, or this test has proven nothing.
  EXPECT_GT(cancelled, Rounds(10000) / 50);
  RecordProperty("cancelled", cancelled);
}

TEST(CancelTest, ACancelledStorePublishesNothingOfWhatWasNotStaged) {
  TestDaemon daemon([](config::Options& o) {
    o.pool_bytes = 16 * kMiB;
    o.pool_reserved_bytes = 8 * kMiB;
  });
  Worker worker(daemon.socket(),
                {.chunk_bytes = kMiB, .segment_bytes = kMiB, .buffer_bytes = 32 * kMiB});
  std::mt19937_64 random(7);
  size_t in_the_middle = 0;
  for (int round = 0; round < 50; ++round) {
    const auto keys = Keys(1000 * (round + 1), 32);
    for (size_t i = 0; i < keys.size(); ++i) worker.Fill(keys[i], i);
    auto operation = worker.client().Store(worker.StoreOf(keys));
    ASSERT_TRUE(operation.ok());
    Spin(static_cast<TimeNs>(random() % (5 * kMillisecond)));
    ASSERT_TRUE(worker.client().Cancel(**operation).ok());
    ASSERT_TRUE((*operation)->WaitEnded(kPatience));
    // From here on the source memory is ours: what the daemon keeps must not depend on it.
    for (size_t i = 0; i < keys.size(); ++i) worker.Poison(i);
    uint32_t kept = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      // One that is not said to be kept may be all the same, but never half of it.
      const bool said = (*operation)->chunks()[i].code == v1::OK;
      const v1::RequestDone done = worker.Get({keys[i]});
      ASSERT_EQ(done.code(), done.leading_valid() == 1 ? v1::OK : v1::NOT_FOUND);
      ASSERT_TRUE(done.leading_valid() == 1 ? worker.Holds(keys[i], 0) : !said)
          << "round " << round << " chunk " << i;
      kept += said ? 1 : 0;
    }
    in_the_middle += kept > 0 && kept < keys.size() ? 1 : 0;
  }
  // The spins must have hit stores under way, or this test has proven nothing.
  EXPECT_GT(in_the_middle, 0u);
}

TEST(CancelTest, CancelIsIdempotentAndUnknownIdsAreIgnored) {
  TestDaemon daemon;
  Worker worker(daemon.socket());
  ASSERT_TRUE(worker.Put({1}).ok());
  auto operation = worker.client().ReadStep(worker.StepOf({1}));
  ASSERT_TRUE(operation.ok());
  ASSERT_TRUE((*operation)->WaitEnded(kPatience));
  EXPECT_TRUE(worker.client().Cancel(**operation).ok());
  EXPECT_TRUE(worker.client().Cancel(**operation).ok());
  EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
  // The number of another session's operation, which this one never had.
  Worker other(daemon.socket());
  for (int i = 0; i < 8; ++i) EXPECT_EQ(other.Get({1}).leading_valid(), 1u);
  auto unknown = other.client().ReadStep(other.StepOf({1}));
  ASSERT_TRUE(unknown.ok());
  EXPECT_TRUE(worker.client().Cancel(**unknown).ok());
  EXPECT_EQ(worker.Get({1}).leading_valid(), 1u);
  ASSERT_TRUE((*unknown)->WaitEnded(kPatience));
  EXPECT_TRUE((*unknown)->status().ok()) << "it is not this session's to cancel";
}

TEST(CancelTest, AClientThatGoesAwayAtAnyStageLeavesNothingBehind) {
  TestDaemon daemon;
  Worker other(daemon.socket());
  ASSERT_TRUE(other.Put(Keys(1, 32)).ok());
  daemon.WaitWritten();
  std::mt19937_64 random(11);
  for (int round = 0; round < 100; ++round) {
    Worker worker(daemon.socket());
    v1::LookupRequest lookup;
    lookup.set_namespace_id(worker.namespace_id());
    AddPrefixHash(worker.At(1, 0).prefix_hash(), &lookup);
    lookup.set_lease_ms(60000);
    ASSERT_GT(worker.client().Lookup(std::move(lookup))->lease_id(), 0u);
    auto read = worker.client().ReadStep(worker.StepOf(Keys(1, 32)));
    auto store = worker.client().Store(worker.StoreOf(Keys(10000 + 100 * round, 16), 64));
    ASSERT_TRUE(read.ok() && store.ok());
    Spin(static_cast<TimeNs>(random() % (3 * kMillisecond)));
    EXPECT_TRUE(worker.client().Close().ok());
    EXPECT_TRUE((*read)->WaitEnded(kPatience));
    EXPECT_TRUE((*store)->WaitEnded(kPatience));
  }
  daemon.WaitUntil([&] { return daemon.stats().sessions_open.Get() == 1; }, "sessions are gone");
  daemon.WaitUntil([&] { return daemon.stats().leases.Get() == 0; }, "leases are gone");
  EXPECT_EQ(daemon.stats().host_buffers.Get(), 1u);
  EXPECT_EQ(other.Get(Keys(1, 32)).leading_valid(), 32u);
}

// What a killed worker does, in a program of its own: kvstream_e2e_victim SOCKET.
TEST(CancelTest, AClientKilledInTheMiddleLeavesNothingBehind) {
  TestDaemon daemon;
  Worker other(daemon.socket());
  ASSERT_TRUE(other.Put(Keys(1, 32)).ok());
  daemon.WaitWritten();
  std::mt19937_64 random(13);
  for (int round = 0; round < 30; ++round) {
    const uint64_t before = daemon.stats().read_steps.Get();
    const pid_t pid = fork();
    if (pid == 0) {
      execl(KVSTREAM_VICTIM, KVSTREAM_VICTIM, daemon.socket().c_str(), "host", nullptr);
      _exit(127);
    }
    daemon.WaitUntil([&] { return daemon.stats().read_steps.Get() > before; }, "the victim reads");
    Spin(static_cast<TimeNs>(random() % (3 * kMillisecond)));
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    daemon.WaitUntil([&] { return daemon.stats().sessions_open.Get() == 1; }, "the session ends");
    EXPECT_EQ(daemon.stats().host_buffers.Get(), 1u);
  }
  EXPECT_EQ(other.Get(Keys(1, 32)).leading_valid(), 32u);
  for (size_t i = 0; i < 32; ++i) EXPECT_TRUE(other.Holds(1 + i, i));
}

}  // namespace
}  // namespace kvstream
