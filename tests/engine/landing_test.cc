#include "server/engine/landing.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

namespace kvstream::engine {
namespace {

using gpu::Direction;

constexpr OperationId kA{1};
constexpr OperationId kB{2};

// Records what a landing buffer wants.
class Recorder final : public Landing::Actions {
 public:
  struct Copy {
    Direction direction;
    uint32_t part;
    Landing::Piece piece;
  };
  struct Ask {
    Direction direction;
    OperationId operation;
    uint32_t part;
    uint64_t sequence;
    std::vector<Landing::Piece> pieces;
  };
  void CopyPiece(Direction direction, uint32_t part, const Landing::Piece& piece) override {
    copies.push_back({direction, part, piece});
  }
  void AskWorker(Direction direction, OperationId operation, uint32_t part, uint64_t sequence,
                 const std::vector<Landing::Piece>& pieces) override {
    asks.push_back({direction, operation, part, sequence, pieces});
  }
  void Moved(uint64_t job, uint64_t bytes) override { moved[job] += bytes; }

  std::vector<Copy> copies;
  std::vector<Ask> asks;
  std::map<uint64_t, uint64_t> moved;
};

class LandingTest : public testing::Test {
 protected:
  void Load(uint64_t job, uint64_t bytes, OperationId operation = kA) {
    landing_.Add(Direction::kToDevice, {job, operation, bytes}, &actions_);
  }
  void EndCopies() {
    const auto copies = std::move(actions_.copies);
    actions_.copies.clear();
    for (const auto& copy : copies) landing_.OnCopied(copy.part, copy.piece, &actions_);
  }
  absl::Status Acknowledge(size_t ask) {
    const Recorder::Ask a = actions_.asks.at(ask);
    return landing_.OnAcknowledged(a.direction, a.part, a.sequence, &actions_);
  }

  Gauge overdue_;
  Recorder actions_;
  Landing landing_{2, 100, &overdue_};
};

TEST_F(LandingTest, APartIsCopiedThenScatteredThenFree) {
  Load(1, 60);
  ASSERT_EQ(actions_.copies.size(), 1u);
  EXPECT_TRUE(actions_.asks.empty());
  EndCopies();
  ASSERT_EQ(actions_.asks.size(), 1u);
  EXPECT_EQ(actions_.asks[0].direction, Direction::kToDevice);
  EXPECT_TRUE(actions_.moved.empty());  // The bytes are not where they belong yet.
  EXPECT_TRUE(Acknowledge(0).ok());
  EXPECT_EQ(actions_.moved[1], 60u);
}

TEST_F(LandingTest, WhileAllPartsAreBusyPiecesGatherAndLongOnesAreCut) {
  Load(1, 10);
  Load(2, 10);
  for (uint64_t job = 3; job <= 6; ++job) Load(job, 45);
  ASSERT_EQ(actions_.copies.size(), 2u);
  EndCopies();
  EXPECT_TRUE(Acknowledge(0).ok());
  ASSERT_EQ(actions_.copies.size(), 3u);  // 45, 45 and the first 10 of the third.
  EXPECT_EQ(actions_.copies[2].piece.job_offset, 0u);
  EXPECT_EQ(actions_.copies[2].piece.bytes, 10u);
  EXPECT_EQ(actions_.copies[2].piece.part_offset, 90u);
  EXPECT_TRUE(Acknowledge(1).ok());
  ASSERT_EQ(actions_.copies.size(), 5u);
  EXPECT_EQ(actions_.copies[3].piece.job_offset, 10u);
  EXPECT_EQ(actions_.copies[3].piece.bytes, 35u);
}

TEST_F(LandingTest, OperationsDoNotShareAPart) {
  Load(1, 10, kA);
  Load(2, 10, kB);
  EXPECT_NE(actions_.copies[0].part, actions_.copies[1].part);
}

TEST_F(LandingTest, AStoreIsGatheredThenCopied) {
  landing_.Add(Direction::kToHost, {7, kA, 80}, &actions_);
  EXPECT_TRUE(actions_.copies.empty());
  ASSERT_EQ(actions_.asks.size(), 1u);
  EXPECT_EQ(actions_.asks[0].direction, Direction::kToHost);
  EXPECT_TRUE(Acknowledge(0).ok());
  ASSERT_EQ(actions_.copies.size(), 1u);
  EXPECT_TRUE(actions_.moved.empty());
  EndCopies();
  EXPECT_EQ(actions_.moved[7], 80u);
}

TEST_F(LandingTest, WhatTheWorkerWasNotAskedForIsRefused) {
  EXPECT_FALSE(landing_.OnAcknowledged(Direction::kToDevice, 0, 1, &actions_).ok());
  EXPECT_FALSE(landing_.OnAcknowledged(Direction::kToDevice, 99, 1, &actions_).ok());
  Load(1, 60);
  const uint32_t part = actions_.copies[0].part;
  EXPECT_FALSE(landing_.OnAcknowledged(Direction::kToDevice, part, 1, &actions_).ok());  // Early.
  EndCopies();
  EXPECT_FALSE(landing_.OnAcknowledged(Direction::kToHost, part, 1, &actions_).ok());
  EXPECT_FALSE(landing_.OnAcknowledged(Direction::kToDevice, part, 2, &actions_).ok());
  EXPECT_TRUE(Acknowledge(0).ok());
  EXPECT_FALSE(Acknowledge(0).ok());  // Twice.
  EXPECT_EQ(actions_.moved[1], 60u);
}

TEST_F(LandingTest, APartOfAnEndedOperationStaysBusyUntilTheWorkerAnswers) {
  Load(1, 100);
  Load(2, 100);
  EndCopies();
  Load(3, 10, kB);
  landing_.EndOperation(kA, &actions_);
  EXPECT_EQ(overdue_.Get(), 2u);
  EXPECT_TRUE(actions_.copies.empty());  // Its kernels may still read the parts.
  EXPECT_TRUE(landing_.WithWorker(0, 1));
  EXPECT_FALSE(landing_.WithWorker(0, 2));
  EXPECT_TRUE(landing_.WithWorker());
  EXPECT_TRUE(Acknowledge(0).ok());
  EXPECT_EQ(overdue_.Get(), 1u);
  EXPECT_TRUE(actions_.moved.empty());
  ASSERT_EQ(actions_.copies.size(), 1u);
  EXPECT_EQ(actions_.copies[0].piece.job, 3u);
}

TEST_F(LandingTest, AnOperationThatEndsWhileItsCopiesRunAsksNothingOfTheWorker) {
  Load(1, 60);
  landing_.EndOperation(kA, &actions_);
  EXPECT_EQ(overdue_.Get(), 0u);
  EndCopies();
  EXPECT_TRUE(actions_.asks.empty());
  Load(2, 60, kB);
  EXPECT_EQ(actions_.copies.size(), 1u);
}

TEST_F(LandingTest, AGatherOfAnEndedOperationIsNotCopied) {
  landing_.Add(Direction::kToHost, {7, kA, 80}, &actions_);
  landing_.EndOperation(kA, &actions_);
  EXPECT_TRUE(Acknowledge(0).ok());
  EXPECT_TRUE(actions_.copies.empty());
}

TEST(LandingBufferTest, PartsThatAWorkerNeverGaveBackAreNotOverdueForEver) {
  Gauge overdue;
  Recorder actions;
  {
    Landing landing(1, 100, &overdue);
    landing.Add(Direction::kToHost, {7, kA, 80}, &actions);
    landing.EndOperation(kA, &actions);
    EXPECT_EQ(overdue.Get(), 1u);
  }
  EXPECT_EQ(overdue.Get(), 0u);
}

TEST_F(LandingTest, AStalledBufferNamesWhoWaitsAndGoesOnWhenTheWorkerAnswers) {
  constexpr OperationId kC{3};
  Load(1, 100);
  Load(2, 100, kB);
  EndCopies();
  Load(3, 10, kC);
  landing_.EndOperation(kA, &actions_);
  EXPECT_FALSE(landing_.stalled());
  // The part's own operation has ended; the other part is not late yet.
  EXPECT_EQ(landing_.Stall(0), std::vector<OperationId>({kC}));
  EXPECT_EQ(landing_.Stall(1), std::vector<OperationId>({kB, kC}));
  landing_.EndOperation(kB, &actions_);
  landing_.EndOperation(kC, &actions_);
  EXPECT_TRUE(Acknowledge(0).ok());
  EXPECT_TRUE(landing_.stalled());
  EXPECT_TRUE(Acknowledge(1).ok());
  EXPECT_FALSE(landing_.stalled());
  Load(4, 10, OperationId{4});
  EXPECT_EQ(actions_.copies.size(), 1u);
}

TEST_F(LandingTest, StoresHaveTheirTurnBetweenLoads) {
  Load(1, 100);
  Load(2, 100);
  for (uint64_t job = 10; job < 30; ++job) Load(job, 100);
  landing_.Add(Direction::kToHost, {7, kA, 100}, &actions_);
  bool gathered = false;
  for (int round = 0; round < 12 && !gathered; ++round) {
    EndCopies();
    const auto asks = std::move(actions_.asks);
    actions_.asks.clear();
    for (const auto& ask : asks) {
      gathered = gathered || ask.direction == Direction::kToHost;
      EXPECT_TRUE(landing_.OnAcknowledged(ask.direction, ask.part, ask.sequence, &actions_).ok());
    }
  }
  EXPECT_TRUE(gathered);
}

// Whatever the order of events: each byte of a job is moved once, no part holds two things at a
// time, and of an operation that has ended nothing is moved any more.
TEST(LandingBufferTest, EveryByteIsMovedOnceInAnyOrderOfEvents) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    Gauge overdue;
    Recorder actions;
    Landing landing(1 + random() % 4, 50 + random() % 100, &overdue);
    std::map<uint64_t, std::pair<OperationId, uint64_t>> jobs;
    std::set<OperationId> ended;
    uint64_t next_job = 1;
    for (int i = 0; i < 400 || !actions.copies.empty() || !actions.asks.empty(); ++i) {
      const uint32_t what = random() % 10;
      if (what < 3 && i < 400) {
        const OperationId operation{1 + random() % 20};
        if (ended.contains(operation)) continue;
        const uint64_t bytes = 1 + random() % 300;
        jobs[next_job] = {operation, bytes};
        landing.Add(random() % 3 == 0 ? Direction::kToHost : Direction::kToDevice,
                    {next_job++, operation, bytes}, &actions);
      } else if (what < 6 && !actions.copies.empty()) {
        std::swap(actions.copies[random() % actions.copies.size()], actions.copies.back());
        const auto copy = actions.copies.back();
        actions.copies.pop_back();
        landing.OnCopied(copy.part, copy.piece, &actions);
      } else if (what < 9 && !actions.asks.empty()) {
        std::swap(actions.asks[random() % actions.asks.size()], actions.asks.back());
        const auto ask = actions.asks.back();
        actions.asks.pop_back();
        ASSERT_TRUE(landing.OnAcknowledged(ask.direction, ask.part, ask.sequence, &actions).ok());
      } else if (what == 9 && random() % 10 == 0) {
        const OperationId operation{1 + random() % 20};
        const auto before = actions.moved;
        landing.EndOperation(operation, &actions);
        ended.insert(operation);
        ASSERT_EQ(actions.moved, before);
      }
      std::set<std::tuple<uint32_t, uint64_t>> places;
      for (const auto& copy : actions.copies) {
        ASSERT_TRUE(places.emplace(copy.part, copy.piece.part_offset).second) << "seed " << seed;
      }
      for (const auto& ask : actions.asks) {
        for (const auto& piece : ask.pieces) {
          ASSERT_TRUE(places.emplace(ask.part, piece.part_offset).second) << "seed " << seed;
        }
      }
    }
    for (const auto& [job, what] : jobs) {
      if (ended.contains(what.first)) {
        EXPECT_LE(actions.moved[job], what.second) << "seed " << seed;
      } else {
        EXPECT_EQ(actions.moved[job], what.second) << "seed " << seed << " job " << job;
      }
    }
    EXPECT_EQ(overdue.Get(), 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvstream::engine
