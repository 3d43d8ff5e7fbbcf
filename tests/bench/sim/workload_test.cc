#include "bench/sim/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/bench/sim/workload_options.h"

namespace kvstream::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

std::vector<uint64_t> AllChunks(const SimRequest& request) {
  std::vector<uint64_t> all = request.chunks;
  all.insert(all.end(), request.made.begin(), request.made.end());
  return all;
}

// Equal ids mean equal prefixes: what is before an id never changes.
void ExpectChained(const Workload& workload) {
  std::map<uint64_t, std::pair<size_t, uint64_t>> before;
  for (const SimRequest& request : workload.requests) {
    std::pair<size_t, uint64_t> last = {0, 0};
    for (const uint64_t id : AllChunks(request)) {
      EXPECT_EQ(before.emplace(id, last).first->second, last) << id;
      last = {last.first + 1, id};
    }
  }
}

// Whatever is made in these tests is chained and ascends.
Workload Make(const WorkloadOptions& options) {
  auto workload = MakeWorkload(options);
  EXPECT_TRUE(workload.ok()) << workload.status();
  if (!workload.ok()) return {};
  ExpectChained(*workload);
  EXPECT_TRUE(std::ranges::is_sorted(workload->requests, std::less<>(), &SimRequest::arrival));
  return *std::move(workload);
}

std::vector<uint64_t> Sessions(const Workload& workload) {
  std::vector<uint64_t> sessions;
  for (const SimRequest& request : workload.requests) sessions.push_back(request.session);
  return sessions;
}

TEST(WorkloadTest, TurnsGrowByQuestionAndAnswer) {
  const Workload workload = Make(Agents(1, 3));
  EXPECT_EQ(workload.chunk_tokens, 256u);
  ASSERT_EQ(workload.requests.size(), 3u);
  const std::tuple<uint32_t, size_t, size_t> turns[] = {{700, 2, 1}, {1000, 3, 1}, {1300, 5, 0}};
  for (size_t i = 0; i < 3; ++i) {
    const auto& [tokens, chunks, made] = turns[i];
    EXPECT_EQ(workload.requests[i].input_tokens, tokens);
    EXPECT_EQ(workload.requests[i].output_tokens, 200u);
    EXPECT_EQ(workload.requests[i].arrival, 0);
    EXPECT_EQ(workload.requests[i].chunks.size(), chunks);
    EXPECT_EQ(workload.requests[i].made.size(), made);
  }
}

TEST(WorkloadTest, NextTurnFindsWhatTheLastLeft) {
  WorkloadOptions options = Agents(5, 6);
  options.agents.user_spread = 1;
  options.chunk_tokens = 16;
  std::map<uint64_t, std::vector<uint64_t>> left;
  for (const SimRequest& request : Make(options).requests) {
    EXPECT_EQ(request.chunks.size(), request.input_tokens / 16);
    const std::vector<uint64_t>& old = left[request.session];
    ASSERT_GE(request.chunks.size(), old.size());
    EXPECT_TRUE(std::equal(old.begin(), old.end(), request.chunks.begin()));
    left[request.session] = AllChunks(request);
    EXPECT_EQ(left[request.session].size(), (request.input_tokens + 200) / 16);
  }
}

TEST(WorkloadTest, ChunkThatStraddlesTheSharedPromptsEndIsTheSessions) {
  for (const auto& [prompt_tokens, shared] :
       {std::pair(600u, 2u), std::pair(511u, 1u), std::pair(512u, 2u)}) {
    WorkloadOptions options = Agents(2, 1);
    options.agents.system_prompt_tokens = prompt_tokens;
    options.agents.user_tokens = 400;
    const Workload workload = Make(options);
    ASSERT_GE(workload.requests[0].chunks.size(), 3u);
    for (size_t i = 0; i < workload.requests[0].chunks.size(); ++i) {
      EXPECT_EQ(workload.requests[0].chunks[i] == workload.requests[1].chunks[i], i < shared) << i;
    }
  }
}

TEST(WorkloadTest, OnlyTheirShareOfTheSessionsShares) {
  for (const auto& [shared, prompts, expected] :
       {std::tuple(1., 1u, std::vector<int>{10}), std::tuple(1., 2u, std::vector<int>{5, 5}),
        std::tuple(0.4, 2u, std::vector<int>{1, 1, 1, 1, 1, 1, 2, 2}),
        std::tuple(0., 3u, std::vector<int>(10, 1))}) {
    WorkloadOptions options = Agents(10, 1);
    options.agents.shared = shared;
    options.agents.system_prompts = prompts;
    options.agents.turns = 3;
    std::map<uint64_t, int> sessions;
    for (const SimRequest& request : Make(options).requests) ++sessions[request.chunks[0]];
    std::vector<int> sizes;
    for (const auto& [id, turns] : sessions) sizes.push_back(turns / 3);
    EXPECT_THAT(sizes, UnorderedElementsAreArray(expected)) << shared;
  }
}

TEST(WorkloadTest, UserTurnsHaveTheirMeanAndSpread) {
  WorkloadOptions options = Agents(100'000, 1);
  options.agents.system_prompt_tokens = 0;
  options.agents.user_tokens = 500;
  options.agents.user_spread = 0.5;
  options.chunk_tokens = kTokensMax;
  double sum = 0;
  double squares = 0;
  for (const SimRequest& request : Make(options).requests) {
    sum += request.input_tokens;
    squares += std::pow(std::log(request.input_tokens / 500.) + 0.125, 2);
  }
  EXPECT_NEAR(sum / 100'000, 500, 5);
  EXPECT_NEAR(std::sqrt(squares / 100'000), 0.5, 0.005);
}

TEST(WorkloadTest, QuestionsShareTheirDocument) {
  WorkloadOptions options = Documents(2, 2);
  const Workload workload = Make(options);
  ASSERT_EQ(workload.requests.size(), 4u);
  for (const SimRequest& request : workload.requests) {
    EXPECT_EQ(request.input_tokens, 1300u);
    EXPECT_EQ(request.output_tokens, 250u);
    EXPECT_EQ(request.chunks.size(), 5u);
    EXPECT_EQ(request.made.size(), 1u);
  }
  // Of 1000 tokens 3 chunks are the document's; the fourth straddles.
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(workload.requests[0].chunks[i] == workload.requests[1].chunks[i], i < 3) << i;
    EXPECT_NE(workload.requests[0].chunks[i], workload.requests[2].chunks[i]) << i;
  }
  EXPECT_THAT(Sessions(workload), ElementsAre(0, 0, 1, 1));
  options.documents.sticky = false;
  EXPECT_THAT(Sessions(Make(options)), ElementsAre(0, 1, 2, 3));
}

TEST(WorkloadTest, ShufflingKeepsEachSessionsTurnsInOrder) {
  for (WorkloadOptions options : {Agents(30, 4), Documents(30, 4)}) {
    const Workload clustered = Make(options);
    EXPECT_TRUE(std::ranges::is_sorted(Sessions(clustered)));
    options.order = WorkloadOrder::kShuffled;
    Workload shuffled = Make(options);
    // Of neighbours 3 of 119 are expected to be of one session: no more than 15 are.
    uint64_t neighbours = 0;
    for (size_t i = 1; i < shuffled.requests.size(); ++i) {
      neighbours += shuffled.requests[i].session == shuffled.requests[i - 1].session;
    }
    EXPECT_LT(neighbours, 15u);
    std::ranges::stable_sort(shuffled.requests, std::less<>(), &SimRequest::session);
    EXPECT_EQ(shuffled.requests, clustered.requests);
  }
}

TEST(WorkloadTest, SeedDecides) {
  WorkloadOptions options = Agents(10, 5);
  options.order = WorkloadOrder::kShuffled;
  options.agents.user_spread = 0.5;
  options.arrival.kind = ArrivalKind::kGamma;
  options.arrival.cv = 4;
  const Workload one = Make(options);
  EXPECT_EQ(one.requests, Make(options).requests);
  options.seed = 2;
  const Workload two = Make(options);
  EXPECT_NE(Sessions(one), Sessions(two));
  EXPECT_NE(one.requests[0].input_tokens, two.requests[0].input_tokens);
  EXPECT_NE(one.requests[0].arrival, two.requests[0].arrival);
}

TEST(WorkloadTest, ArrivalsHaveTheirRateAndBursts) {
  using enum ArrivalKind;
  constexpr uint32_t kRequests = 200'000;
  WorkloadOptions options = Agents(kRequests, 1);
  options.chunk_tokens = kTokensMax;
  // The share below the mean is the regularized incomplete gamma function P(1/cv^2, 1/cv^2).
  for (const auto& [kind, cv, below_mean] :
       {std::tuple(kPoisson, 1., 0.6321), std::tuple(kGamma, 0.5, 0.5665),
        std::tuple(kGamma, 1., 0.6321), std::tuple(kGamma, 4., 0.8659),
        std::tuple(kGamma, 8., 0.9452)}) {
    options.arrival = {.kind = kind, .rate_per_s = 2, .cv = cv};
    double squares = 0;  // Of seconds.
    double below = 0;
    TimeNs last = 0;
    for (const SimRequest& request : Make(options).requests) {
      const double gap_s = static_cast<double>(request.arrival - last) / kSecond;
      last = request.arrival;
      squares += gap_s * gap_s;
      below += gap_s < 0.5 ? 1 : 0;
    }
    const double mean_s = static_cast<double>(last) / kSecond / kRequests;
    EXPECT_NEAR(mean_s, 0.5, 0.5 * 0.03) << cv;
    EXPECT_NEAR(std::sqrt(squares / kRequests - mean_s * mean_s), cv * mean_s, cv * 0.5 * 0.03);
    EXPECT_NEAR(below / kRequests, below_mean, 0.005) << cv;
  }
}

TEST(WorkloadTest, ReusableShareCountsLeadingPrefixesOnly) {
  EXPECT_EQ(ReusableShare({}), 0);
  Workload workload{.chunk_tokens = 256, .requests = std::vector<SimRequest>(5)};
  workload.requests[0].chunks = {1, 2};
  workload.requests[0].made = {3};
  workload.requests[1].chunks = {1, 2, 3, 4};  // 3 of 4: `made` was seen, too.
  workload.requests[2].chunks = {5, 2, 3};     // None: 5 is new.
  workload.requests[3].chunks = {5};           // 1 of 1.
  workload.requests[4].chunks = {6, 6};        // None: itself is not earlier.
  EXPECT_DOUBLE_EQ(ReusableShare(workload), 4. / 12);
}

TEST(WorkloadTest, ReusableShareOfGeneratedOnesIsWhatTheirSizesSay) {
  // Turns of 2, 3 and 5 chunks find 0, 3 and 4. The second session finds 2 in the first turn.
  EXPECT_DOUBLE_EQ(ReusableShare(Make(Agents(1, 3))), 7. / 10);
  EXPECT_DOUBLE_EQ(ReusableShare(Make(Agents(2, 3))), 16. / 20);
  // All but the first question find 3 of 5 chunks, in any order.
  WorkloadOptions documents = Documents(6, 4);
  for (const auto order : {WorkloadOrder::kClustered, WorkloadOrder::kShuffled}) {
    documents.order = order;
    EXPECT_DOUBLE_EQ(ReusableShare(Make(documents)), 3. / 4 * 3 / 5);
  }
}

// A trace in a file of its own.
class TraceWorkloadTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.kind = WorkloadKind::kTrace;
    options_.arrival.kind = ArrivalKind::kTrace;
    options_.trace.path = testing::TempDir() + "trace.XXXXXX";
    close(mkstemp(options_.trace.path.data()));
  }
  void TearDown() override { unlink(options_.trace.path.c_str()); }

  void Add(uint64_t timestamp_ms, uint64_t input_tokens, const std::string& ids) {
    std::ofstream(options_.trace.path, std::ios::app)
        << R"({"timestamp":)" << timestamp_ms << R"(,"input_length":)" << input_tokens
        << R"(,"output_length":7,"hash_ids":[)" << ids << "]}\n";
  }
  // Three conversations behind one system prompt (0), and prompts that are too short to tell.
  void AddConversations() {
    Add(0, 1100, "0,1,2");
    Add(1500, 1030, "0,5,6");
    Add(3000, 1536, "0,1,7");
    Add(3000, 600, "0,8");
    Add(4000, 1024, "0,9");
    Add(5000, 2048, "0,1,7,10");
    Add(5000, 100, "11");
    Add(6000, 5000, "0");
  }

  WorkloadOptions options_;
};

TEST_F(TraceWorkloadTest, OnlyWholeBlocksAreChunksAndWhatGoesOnIsASession) {
  AddConversations();
  options_.chunk_tokens = 0;  // Means nothing here.
  const Workload workload = Make(options_);
  EXPECT_EQ(workload.chunk_tokens, 512u);
  std::vector<std::vector<uint64_t>> chunks;
  for (const SimRequest& request : workload.requests) {
    chunks.push_back(request.chunks);
    EXPECT_EQ(request.output_tokens, 7u);
    EXPECT_THAT(request.made, IsEmpty());
  }
  EXPECT_EQ(chunks, (std::vector<std::vector<uint64_t>>{
                        {0, 1}, {0, 5}, {0, 1, 7}, {0}, {0, 9}, {0, 1, 7, 10}, {}, {0}}));
  EXPECT_THAT(Sessions(workload), ElementsAre(0, 1, 0, 2, 3, 0, 4, 5));
  EXPECT_DOUBLE_EQ(ReusableShare(workload), 9. / 15);
}

TEST_F(TraceWorkloadTest, ArrivalsFollowTheTraceAtItsSpeed) {
  AddConversations();
  options_.trace.requests_max = 3;
  options_.arrival.trace_speed = 2;
  const Workload workload = Make(options_);
  ASSERT_EQ(workload.requests.size(), 3u);
  EXPECT_EQ(workload.requests[1].arrival, 750 * kMillisecond);
  EXPECT_EQ(workload.requests[2].arrival, 1500 * kMillisecond);
}

TEST_F(TraceWorkloadTest, TimestampsMatterOnlyToWhoAsksForThem) {
  Add(5, 512, "1");
  Add(4, 512, "2");
  ExpectRefused(options_, "trace.path: request 2 of the trace goes back in time");
  options_.arrival.kind = ArrivalKind::kPoisson;
  EXPECT_THAT(Make(options_).requests[0].chunks, ElementsAre(1));
}

TEST_F(TraceWorkloadTest, TracesThatMakeNoWorkloadAreRefused) {
  ExpectRefused(options_, "trace.path: " + options_.trace.path + " has no requests");
  Add(uint64_t{1} << 50, 512, "1");
  ExpectRefused(options_, "arrival.trace_speed: request 1 of the trace arrives after 1e9 s");
  options_.arrival.kind = ArrivalKind::kOffline;
  Add(0, kTokensMax, "2");
  ExpectRefused(options_, "trace.path: request 2 of the trace has more than 10000000 tokens");
  options_.arrival = {.kind = ArrivalKind::kTrace, .trace_speed = 0};
  ExpectRefused(options_, "arrival.trace_speed: 0 is not within");
  options_.arrival = {};
  options_.trace.path += ".not";
  EXPECT_EQ(MakeWorkload(options_).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvstream::sim
