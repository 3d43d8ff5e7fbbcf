// Options that make no workload are refused, and the field is named.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "tests/bench/sim/workload_options.h"

namespace kvstream::sim {
namespace {

TEST(WorkloadTest, SizesOutOfTheirLimitsAreRefusedByName) {
  WorkloadOptions options;
  const std::pair<std::string, uint32_t*> fields[] = {
      {"agents.sessions", &options.agents.sessions},
      {"agents.turns", &options.agents.turns},
      {"agents.system_prompt_tokens", &options.agents.system_prompt_tokens},
      {"agents.system_prompts", &options.agents.system_prompts},
      {"agents.user_tokens", &options.agents.user_tokens},
      {"agents.output_tokens", &options.agents.output_tokens},
      {"documents.documents", &options.documents.documents},
      {"documents.document_tokens", &options.documents.document_tokens},
      {"documents.questions", &options.documents.questions},
      {"documents.question_tokens", &options.documents.question_tokens},
      {"documents.output_tokens", &options.documents.output_tokens}};
  for (const auto& [field, value] : fields) {
    options.kind = field.starts_with("a") ? WorkloadKind::kAgents : WorkloadKind::kDocuments;
    const uint32_t good = std::exchange(*value, kTokensMax + 1);
    ExpectRefused(options, field + ": 10000001 is not within");
    *value = good;
  }
  ExpectRefused(Agents(10'000, 10'000), "agents.sessions * agents.turns: 100000000 is not within");
  ExpectRefused(Documents(10'000, 10'000), "documents.documents * documents.questions: 100000000");
  WorkloadOptions long_document = Documents(1, 1);
  long_document.documents.document_tokens = kTokensMax;
  ExpectRefused(long_document, "documents.document_tokens + question_tokens + output_tokens:");
  WorkloadOptions long_turns = Agents(1, 3);
  long_turns.agents.output_tokens = 6'000'000;
  ExpectRefused(long_turns, "agents.turns: turn 2 of a session has 12000800 tokens");
}

TEST(WorkloadTest, OptionsThatMakeNoSenseAreRefusedByName) {
  using Edit = std::function<void(WorkloadOptions*)>;
  const std::pair<std::string, Edit> edits[] = {
      {"chunk_tokens: 0 is", [](auto* o) { o->chunk_tokens = 0; }},
      {"agents.turns: 0 is", [](auto* o) { o->agents.turns = 0; }},
      {"agents.shared", [](auto* o) { o->agents.shared = 1.01; }},
      {"agents.user_spread", [](auto* o) { o->agents.user_spread = -0.1; }},
      {"trace.path", [](auto* o) { o->kind = WorkloadKind::kTrace; }},
      {"trace.requests_max",
       [](auto* o) {
         o->kind = WorkloadKind::kTrace, o->trace = {"x", 0};
       }},
      {"arrival.kind", [](auto* o) { o->arrival = {.kind = ArrivalKind::kTrace}; }},
      {"arrival.rate_per_s: 0 is",
       [](auto* o) {
         o->arrival = {ArrivalKind::kPoisson, 0};
       }},
      {"arrival.rate_per_s",
       [](auto* o) {
         o->arrival = {ArrivalKind::kGamma, std::nan("")};
       }},
      {"arrival.cv: 0 is",
       [](auto* o) {
         o->arrival = {ArrivalKind::kGamma, 1, 0};
       }},
  };
  for (const auto& [cause, edit] : edits) {
    WorkloadOptions options = Agents(2, 3);
    edit(&options);
    ExpectRefused(options, cause);
  }
}

}  // namespace
}  // namespace kvstream::sim
