// Whole simulated clusters: what they must do whatever the figures are.
#include "bench/sim/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace kvstream::sim {
namespace {

using sched::Policy;

// A node with one engine, on even tiers of 3 and 1 GB/s without latency.
ClusterOptions OneNode() {
  ClusterOptions options;
  options.gpus_per_node = 1;
  options.nvme.read.bytes_per_second = 3e9;
  options.pfs.read.bytes_per_second = 1e9;
  options.nvme.latency = options.pfs.latency = 0;
  return options;
}

Workload Documents(uint32_t documents, uint32_t questions, uint32_t tokens) {
  WorkloadOptions options;
  options.kind = WorkloadKind::kDocuments;
  options.documents = {.documents = documents,
                       .document_tokens = tokens,
                       .questions = questions,
                       .question_tokens = 32,
                       .output_tokens = 16};
  options.order = WorkloadOrder::kShuffled;
  options.arrival.kind = ArrivalKind::kOffline;
  return *MakeWorkload(options);
}

Workload Sessions(double shared, double rate_per_s) {
  WorkloadOptions options;
  options.agents = {.sessions = 16, .turns = 4, .shared = shared};
  options.arrival = {.kind = ArrivalKind::kPoisson, .rate_per_s = rate_per_s};
  return *MakeWorkload(options);
}

Report Simulated(const ClusterOptions& options, const Workload& workload) {
  const auto report = Simulate(options, workload, [](uint64_t) {});
  EXPECT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->nodes.first_token_seconds.size(), workload.requests.size());
  uint64_t tokens = 0;
  for (const SimRequest& request : workload.requests) tokens += request.output_tokens;
  EXPECT_EQ(report->nodes.output_tokens, tokens);
  return *report;
}

double Sum(const std::vector<uint64_t>& bytes) {
  return static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}));
}

double MeanFirstToken(const Report& report) {
  const auto& all = report.nodes.first_token_seconds;
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

// What one step takes over its bound, everything lying on the tiers before.
double AboveBound(ClusterOptions options, Policy policy, uint32_t percent = 50) {
  options.placed = true;
  options.storage.router.policy = {.policy = policy, .fixed_percent = percent};
  if (policy == Policy::kFixed) options.storage.router.hedge_after = kNever / 4;
  // 245 chunks of 50 MB: about 12 GB.
  const Report report = Simulated(options, Documents(4, 1, 245 * 256));
  return report.nodes.load_seconds / report.nodes.bound_seconds;
}

TEST(ClusterTest, AStepEndsAtItsBound) {
  EXPECT_NEAR(AboveBound(OneNode(), Policy::kCompletion), 1, 0.015);
}

TEST(ClusterTest, AFixedSplitIsAsFarAboveAsItsRatioIsOff) {
  ClusterOptions options = OneNode();
  EXPECT_NEAR(AboveBound(options, Policy::kFixed, 75), 1, 0.02);
  EXPECT_NEAR(AboveBound(options, Policy::kFixed, 90), 1.2, 0.02);  // 10.8 GB at 3 against 3 s.
  // 12 GB at 2 and 1 GB/s: 9 GB at 2 take 4.5 s, where both together need 4.
  options.nvme.read.bytes_per_second = 2e9;
  EXPECT_NEAR(AboveBound(options, Policy::kFixed, 75), 4.5 / 4, 0.02);
  EXPECT_NEAR(AboveBound(options, Policy::kCompletion), 1, 0.015);
}

TEST(ClusterTest, TheSameOptionsMakeTheSameRun) {
  ClusterOptions options = OneNode();
  options.nodes = 3;
  options.pfs.read.kind = BandwidthOptions::Kind::kBursty;
  options.pfs.read.low = 0.1;
  options.pfs.read.high = 0.6;
  options.pfs.latency = 20 * kMillisecond;
  options.pfs.latency_p99 = 600 * kMillisecond;
  const Workload workload = Documents(64, 3, 8192);
  const Report one = Simulated(options, workload);
  const Report same = Simulated(options, workload);
  EXPECT_EQ(one.nodes.first_token_seconds, same.nodes.first_token_seconds);
  EXPECT_EQ(one.events, same.events);
  EXPECT_EQ(one.read_bytes, same.read_bytes);
  options.seed = 2;
  EXPECT_NE(one.nodes.first_token_seconds, Simulated(options, workload).nodes.first_token_seconds);
}

TEST(ClusterTest, WithoutStorageEverythingBeyondMemoryIsComputed) {
  ClusterOptions options = OneNode();
  options.use_nvme = options.use_pfs = false;
  options.node.host_cache_bytes = 0;
  const Workload workload = Documents(64, 3, 8192);
  const Report memory = Simulated(options, workload);
  EXPECT_EQ(memory.nodes.storage_hit_chunks, 0u);
  EXPECT_EQ(Sum(memory.read_bytes) + Sum(memory.written_bytes), 0);
  const Report storage = Simulated(OneNode(), workload);
  // What is not found again is stored; a third of the questions find nothing.
  EXPECT_LT(storage.nodes.computed_tokens, memory.nodes.computed_tokens / 2);
  EXPECT_GT(storage.nodes.storage_hit_chunks, 0u);
  EXPECT_LT(storage.seconds, memory.seconds);
  ClusterOptions large = options;
  large.node.host_cache_bytes = uint64_t{1} << 40;
  EXPECT_EQ(Simulated(large, workload).nodes.computed_tokens, storage.nodes.computed_tokens);
}

TEST(ClusterTest, CopiesAreWhatIsWrittenOverWhatIsStored) {
  const Workload workload = Documents(32, 2, 8192);
  const auto written = [&](Copies copies) {
    ClusterOptions options = OneNode();
    options.storage.replication = {.copies = copies, .fraction = 0.4};
    const Report report = Simulated(options, workload);
    EXPECT_EQ(report.dropped_chunks, 0u);
    return Sum(report.written_bytes) / static_cast<double>(report.stored_bytes);
  };
  EXPECT_DOUBLE_EQ(written(Copies::kAll), 2);
  EXPECT_DOUBLE_EQ(written(Copies::kOne), 1);
  EXPECT_NEAR(written(Copies::kFraction), 1.4, 0.1);
  EXPECT_GT(written(Copies::kReactive), 1);
  EXPECT_LE(written(Copies::kReactive), 2);
  EXPECT_GT(written(Copies::kAdaptive), 1);
  EXPECT_LT(written(Copies::kAdaptive), 1.5);
}

TEST(ClusterTest, NodesThatShareStoreACommonBeginningOnce) {
  ClusterOptions options = OneNode();
  options.nodes = 8;
  const Workload workload = Sessions(/*shared=*/1, 8);
  const Report apart = Simulated(options, workload);
  options.share = true;
  const Report together = Simulated(options, workload);
  EXPECT_EQ(apart.writes_saved, 0u);
  EXPECT_LT(together.written_bytes[1], apart.written_bytes[1]);
  EXPECT_LE(together.nodes.computed_tokens, apart.nodes.computed_tokens);
}

TEST(ClusterTest, PreloadsAreFoundInMemoryAndCostNoFirstTokenTime) {
  ClusterOptions options = OneNode();
  options.placed = true;
  const Workload workload = Documents(32, 1, 16384);
  const Report without = Simulated(options, workload);
  options.node.preload = true;
  const Report with = Simulated(options, workload);
  EXPECT_GT(with.nodes.preloaded_chunks, 0u);
  EXPECT_GT(with.nodes.host_hit_chunks, 0u);
  EXPECT_LE(MeanFirstToken(with), MeanFirstToken(without));
}

TEST(ClusterTest, APreloadReadsNothingTwiceHoweverLongItsUseTakes) {
  ClusterOptions options = OneNode();
  options.placed = true;
  options.node.preload = true;
  options.node.preload_bytes = kGiB;  // A document is larger.
  WorkloadOptions slow;
  slow.kind = WorkloadKind::kDocuments;
  slow.documents = {
      .documents = 16, .document_tokens = 16384, .questions = 1, .output_tokens = 1000};
  slow.arrival.kind = ArrivalKind::kOffline;
  const Report report = Simulated(options, *MakeWorkload(slow));
  const double bytes = 16.0 * 64 * static_cast<double>(report.chunk_bytes);
  EXPECT_LE(Sum(report.read_bytes), 1.05 * bytes);
}

TEST(ClusterTest, AllInstancesOfAllNodesWork) {
  ClusterOptions options = OneNode();
  options.nodes = 4;
  const Workload workload = Documents(128, 1, 8192);
  const double alone = Simulated(options, workload).seconds;
  options.gpus_per_node = 4;
  EXPECT_LT(Simulated(options, workload).seconds, 0.4 * alone);
}

TEST(ClusterTest, WhatComesAtOnceIsOneStep) {
  ClusterOptions options = OneNode();
  options.placed = true;
  options.node.step_tokens = 1 << 20;
  options.gpu = "h200";
  const Report report = Simulated(options, Documents(16, 1, 4096));
  const auto& first = report.nodes.first_token_seconds;
  EXPECT_EQ(*std::min_element(first.begin(), first.end()),
            *std::max_element(first.begin(), first.end()));
}

TEST(ClusterTest, BreakEvenComputesWhereStorageIsSlower) {
  ClusterOptions options = OneNode();
  options.placed = true;
  options.nvme.read.bytes_per_second = 0.05e9;
  options.pfs.read.bytes_per_second = 0.05e9;
  const Workload workload = Documents(32, 1, 8192);
  const Report loads = Simulated(options, workload);
  options.node.break_even = true;
  const Report decides = Simulated(options, workload);
  EXPECT_GT(decides.nodes.declined_chunks, 0u);
  EXPECT_LT(MeanFirstToken(decides), MeanFirstToken(loads));
}

TEST(ClusterTest, WhatCannotBeIsAnErrorThatNamesIt) {
  const Workload workload = Documents(1, 1, 1024);
  const auto message = [&](ClusterOptions options) {
    return std::string(Simulate(options, workload, [](uint64_t) {}).status().message());
  };
  ClusterOptions options = OneNode();
  options.model = "13b";
  EXPECT_NE(message(options).find("model"), std::string::npos);
  options = OneNode();
  options.gpu = "b1";
  EXPECT_NE(message(options).find("gpu"), std::string::npos);
  options = OneNode();
  options.model = "110b";  // 222 GB of weights on 40.
  EXPECT_NE(message(options).find("gpus_per_instance"), std::string::npos);
  options = OneNode();
  options.segment_bytes = options.window_bytes + 4096;
  EXPECT_NE(message(options).find("segment_bytes"), std::string::npos);
}

}  // namespace
}  // namespace kvstream::sim
