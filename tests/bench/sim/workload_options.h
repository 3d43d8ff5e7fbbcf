// Small workloads for tests, and what MakeWorkload must refuse.
//
// Stateless; any thread.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/sim/workload.h"

namespace kvstream::sim {

inline void ExpectRefused(const WorkloadOptions& options, const std::string& cause) {
  const absl::Status status = MakeWorkload(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << cause;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("workload: " + cause));
}

// Turns of 300 tokens, 200 of them the answer, behind 600 of one system prompt.
inline WorkloadOptions Agents(uint32_t sessions, uint32_t turns) {
  WorkloadOptions options;
  options.kind = WorkloadKind::kAgents;
  options.agents = {sessions, turns, 600, 1, 1, 100, 0, 200};
  options.order = WorkloadOrder::kClustered;
  options.arrival.kind = ArrivalKind::kOffline;
  return options;
}

// Documents of 1000 tokens, questions of 300, answers of 250.
inline WorkloadOptions Documents(uint32_t documents, uint32_t questions) {
  WorkloadOptions options;
  options.kind = WorkloadKind::kDocuments;
  options.documents = {documents, 1000, questions, 300, 250};
  options.order = WorkloadOrder::kClustered;
  options.arrival.kind = ArrivalKind::kOffline;
  return options;
}

}  // namespace kvstream::sim
