#include "server/sched/tier_health.h"

#include <gtest/gtest.h>

namespace kvstream::sched {
namespace {

using State = TierHealth::State;

class TierHealthTest : public testing::Test {
 protected:
  void FailReads(uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) health_.NoteRead(false, now_);
  }
  void FailWrites(uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) health_.NoteWrite(false, now_);
  }
  // Runs the probe that is due; returns how long it took to come.
  TimeNs Probe(bool ok) {
    const TimeNs waited = health_.next_probe() - now_;
    now_ = health_.next_probe();
    health_.ProbeBegan();
    EXPECT_EQ(health_.state(now_), State::kProbing);
    EXPECT_EQ(health_.next_probe(), kNever);
    health_.ProbeEnded(ok, now_);
    return waited;
  }

  const TierHealthOptions options_;
  TimeNs now_ = 1000 * kSecond;
  TierHealth health_{options_};
};

TEST_F(TierHealthTest, FailuresBetweenSuccessesDegradeAndAreForgotten) {
  EXPECT_EQ(health_.state(now_), State::kOk);
  for (int i = 0; i < 100; ++i) {
    FailReads(options_.failures - 1);
    health_.NoteRead(true, now_);
  }
  EXPECT_FALSE(health_.reads_out());
  EXPECT_EQ(health_.state(now_), State::kDegraded);
  EXPECT_EQ(health_.state(now_ + options_.memory), State::kOk);
  EXPECT_EQ(health_.next_probe(), kNever);
}

TEST_F(TierHealthTest, ReadsThatFailInARowPutItOutUntilAProbeGoesWell) {
  FailReads(options_.failures);
  EXPECT_TRUE(health_.reads_out());
  EXPECT_FALSE(health_.writes_out());
  EXPECT_EQ(health_.state(now_), State::kOut);
  health_.NoteRead(true, now_);  // One that was in flight tells nothing of the next.
  EXPECT_TRUE(health_.reads_out());
  EXPECT_EQ(Probe(true), options_.first_probe);
  EXPECT_FALSE(health_.reads_out());
  FailReads(options_.failures - 1);
  EXPECT_FALSE(health_.reads_out()) << "failures before the probe are forgotten";
}

TEST_F(TierHealthTest, WritesThatFailLeaveReadsAlone) {
  FailWrites(options_.failures);
  EXPECT_TRUE(health_.writes_out());
  EXPECT_FALSE(health_.reads_out());
  EXPECT_EQ(health_.state(now_), State::kDegraded);
  EXPECT_FALSE(health_.writes_hang());
  Probe(true);
  EXPECT_FALSE(health_.writes_out());
}

TEST_F(TierHealthTest, WritesThatDoNotEndAreOut) {
  health_.NoteWritesSilentSince(now_ - options_.writes_stuck + 1, now_);
  EXPECT_FALSE(health_.writes_out());
  health_.NoteWritesSilentSince(now_ - options_.writes_stuck, now_);
  EXPECT_TRUE(health_.writes_out());
  EXPECT_TRUE(health_.writes_hang());
  EXPECT_EQ(health_.next_probe(), kNever) << "it would tell nothing of those writes";
  health_.NoteWritesSilentSince(kNever, now_);
  Probe(true);
  EXPECT_FALSE(health_.writes_out());
}

TEST_F(TierHealthTest, ProbesThatFailComeLessAndLessOften) {
  FailReads(options_.failures);
  TimeNs expected = options_.first_probe;
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(Probe(false), expected);
    EXPECT_TRUE(health_.reads_out());
    expected = std::min(2 * expected, options_.most_between_probes);
  }
  EXPECT_EQ(Probe(true), options_.most_between_probes);
}

TEST_F(TierHealthTest, OneThatFlapsIsProbedLessOftenUntilItHasBeenWellForLong) {
  TimeNs expected = options_.first_probe;
  for (int i = 0; i < 10; ++i) {
    FailReads(options_.failures);
    EXPECT_EQ(Probe(true), expected) << i;
    now_ += kSecond;
    expected = std::min(2 * expected, options_.most_between_probes);
  }
  now_ += options_.memory;
  FailReads(options_.failures);
  EXPECT_EQ(Probe(true), options_.first_probe);
}

TEST_F(TierHealthTest, OneFailedWriteAfterAProbeIsEnough) {
  FailWrites(options_.failures);
  Probe(true);
  FailWrites(1);
  EXPECT_TRUE(health_.writes_out()) << "a file system that is nearly full takes a probe";
  Probe(true);
  health_.NoteWrite(true, now_);
  FailWrites(options_.failures - 1);
  EXPECT_FALSE(health_.writes_out());
}

TEST_F(TierHealthTest, ReadsAreTriedThoughAWriteHangsAndBringNoWritesBack) {
  health_.NoteWritesSilentSince(now_ - options_.writes_stuck, now_);
  FailReads(options_.failures);
  Probe(true);
  EXPECT_FALSE(health_.reads_out());
  EXPECT_TRUE(health_.writes_out());
  EXPECT_EQ(health_.next_probe(), kNever);
  health_.NoteWritesSilentSince(kNever, now_);
  Probe(true);
  EXPECT_FALSE(health_.writes_out());
}

TEST_F(TierHealthTest, BothDirectionsHaveOneProbe) {
  FailWrites(options_.failures);
  const TimeNs due = health_.next_probe();
  now_ += kSecond / 2;
  FailReads(options_.failures);
  EXPECT_EQ(health_.next_probe(), due);
  Probe(true);
  EXPECT_FALSE(health_.reads_out());
  EXPECT_FALSE(health_.writes_out());
  EXPECT_EQ(health_.next_probe(), kNever);
}

}  // namespace
}  // namespace kvstream::sched
