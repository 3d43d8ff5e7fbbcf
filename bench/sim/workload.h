// What the users of a simulated cluster ask for: a list of requests, each with the chunks of its
// prompt, from a trace or made by a few rules (agents that talk in turns; questions about long
// documents). No content: a chunk is a number. The same options make the same workload, everywhere.
//
// Prompts. Only whole chunks count: a prompt of n tokens has n / chunk_tokens of them. A chunk that
// straddles the border between a shared beginning and what follows belongs to what follows, so it
// is shared with nobody. An answer is kept with its last token, though an engine computes nothing
// for that token: this moves a chunk by one turn where an answer ends exactly with the chunk.
//
// Memory: 8 bytes for each chunk of each request.
// Stateless; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/types.h"

namespace kvstream::sim {

// Of a prompt with its answer.
inline constexpr uint32_t kTokensMax = 10'000'000;
inline constexpr uint32_t kRequestsMax = 10'000'000;
// What an id of a trace stands for.
inline constexpr uint32_t kTraceChunkTokens = 512;

struct SimRequest {
  TimeNs arrival = 0;    // From the start; ascending over the list.
  uint64_t session = 0;  // From 0, without gaps. Requests of one session go to one node.
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  // Ids of the prompt's whole chunks, in prefix order. Equal ids mean equal prefixes up to and
  // including that chunk.
  std::vector<uint64_t> chunks;
  // Ids of chunks that are whole only with the answer: what a next turn of the session can find
  // beyond `chunks`.
  std::vector<uint64_t> made;

  bool operator==(const SimRequest&) const = default;
};

struct Workload {
  uint32_t chunk_tokens = 0;
  std::vector<SimRequest> requests;
};

enum class WorkloadKind {
  kTrace,
  kAgents,
  kDocuments,
};

enum class WorkloadOrder {
  kClustered,  // A session's turns (a document's questions) follow each other.
  kShuffled,   // Those of all are interleaved at random, but each session's turns in order.
};

enum class ArrivalKind {
  kTrace,    // When the trace says. Only with WorkloadKind::kTrace.
  kOffline,  // All at 0.
  kPoisson,
  kGamma,
};

// A file as client/replay/trace.h reads it. A trace names no sessions, so they are guessed: a
// request whose prompt goes on from an earlier prompt's last whole chunk is of that one's session,
// unless that chunk was itself old when the earlier prompt came (a shared beginning ties nobody
// together). The ids are those of the trace; `made` is empty.
struct TraceOptions {
  std::string path;
  uint32_t requests_max = kRequestsMax;  // The first so many of the file. At least 1.
};

// Sessions of several turns. A turn's prompt is the system prompt, all that the session's user and
// model have said before, and what the user says now.
struct AgentOptions {
  uint32_t sessions = 64;
  uint32_t turns = 8;  // Of each session.
  uint32_t system_prompt_tokens = 2048;
  uint32_t system_prompts = 1;  // How many different ones the sharing sessions have, evenly.
  // How many of the sessions, 0 .. 1, share one of these. They are picked at random; the others
  // have system prompts of their own, of the same length.
  double shared = 1;
  // What a turn adds: lognormal with this mean, at least 1 token. The spread is the standard
  // deviation of the logarithm, 0 .. 3; 0: all are equal.
  uint32_t user_tokens = 512;
  double user_spread = 0.5;
  uint32_t output_tokens = 256;  // Of each turn.
};

// Several questions about each of several documents. A prompt is the document and the question.
struct DocumentOptions {
  uint32_t documents = 64;
  uint32_t document_tokens = 16384;
  uint32_t questions = 4;  // About each document.
  uint32_t question_tokens = 64;
  uint32_t output_tokens = 128;
  // A document is a session: all questions about it go to one node. Otherwise each is its own.
  bool sticky = true;
};

// With kPoisson and kGamma the requests keep their order in the list and get new arrivals; the
// first comes one gap after 0. Nothing waits for answers here: of a session's turns the next may
// arrive before the last is answered.
struct ArrivalOptions {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate_per_s = 1;  // kPoisson, kGamma: the mean. 1e-6 .. 1e9.
  // kGamma: coefficient of variation of the gaps, 0.01 .. 100. 1 is kPoisson, more is bursts.
  double cv = 1;
  double trace_speed = 1;  // kTrace: how much faster than the trace, 1e-6 .. 1e6.
};

struct WorkloadOptions {
  WorkloadKind kind = WorkloadKind::kAgents;
  uint32_t chunk_tokens = 256;  // kAgents, kDocuments. A trace has its own, kTraceChunkTokens.
  WorkloadOrder order = WorkloadOrder::kShuffled;  // kAgents, kDocuments.
  TraceOptions trace;
  AgentOptions agents;
  DocumentOptions documents;
  ArrivalOptions arrival;
  // Sizes, order and arrivals are drawn apart: none of them changes another.
  uint64_t seed = 1;
};

// What the chosen kinds do not use means nothing, and may be anything.
// INVALID_ARGUMENT: a field out of its limits, a prompt that grows beyond kTokensMax, an arrival
// after 1e9 s, or a trace that is empty, has a bad line or (with ArrivalKind::kTrace) goes back in
// time. Names the field. NOT_FOUND, UNAVAILABLE: a trace file that cannot be read.
absl::StatusOr<Workload> MakeWorkload(const WorkloadOptions& options);

// How much of all prompts' whole chunks, 0 .. 1, a cache without bounds would hit: what lies in a
// leading prefix all of which earlier requests of the list had in their `chunks` or `made`. 0 where
// there are no chunks.
double ReusableShare(const Workload& workload);

}  // namespace kvstream::sim
