#include "bench/sim/workload.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/replay/possible_hits.h"
#include "client/replay/trace.h"
#include "tests/support/sim_random.h"

namespace kvstream::sim {
namespace {

// 30 years: nanoseconds still fit.
constexpr double kArrivalMaxNs = 1e18;

absl::Status Refuse(const char* field, const std::string& cause) {
  return absl::InvalidArgumentError(absl::StrCat("workload: ", field, ": ", cause));
}

struct Limit {
  const char* field;
  double value;
  double min;
  double max;
};

std::string Digits(double value) {
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  return whole ? absl::StrCat(static_cast<int64_t>(value)) : absl::StrCat(value);
}

absl::Status Check(std::initializer_list<Limit> limits) {
  for (const Limit& l : limits) {
    // So that NaN is refused, too.
    if (l.value >= l.min && l.value <= l.max) continue;
    return Refuse(l.field, absl::StrCat(Digits(l.value), " is not within ", Digits(l.min), " .. ",
                                        Digits(l.max)));
  }
  return absl::OkStatus();
}

double Product(uint32_t a, uint32_t b) { return static_cast<double>(a) * b; }

absl::Status CheckAgents(const AgentOptions& a) {
  return Check({{"agents.sessions", 1. * a.sessions, 1, kRequestsMax},
                {"agents.turns", 1. * a.turns, 1, kRequestsMax},
                {"agents.sessions * agents.turns", Product(a.sessions, a.turns), 1, kRequestsMax},
                {"agents.system_prompt_tokens", 1. * a.system_prompt_tokens, 0, kTokensMax},
                {"agents.system_prompts", 1. * a.system_prompts, 1, kRequestsMax},
                {"agents.shared", a.shared, 0, 1},
                {"agents.user_tokens", 1. * a.user_tokens, 1, kTokensMax},
                {"agents.user_spread", a.user_spread, 0, 3},
                {"agents.output_tokens", 1. * a.output_tokens, 1, kTokensMax}});
}

absl::Status CheckDocuments(const DocumentOptions& d) {
  return Check({{"documents.documents", 1. * d.documents, 1, kRequestsMax},
                {"documents.document_tokens", 1. * d.document_tokens, 1, kTokensMax},
                {"documents.questions", 1. * d.questions, 1, kRequestsMax},
                {"documents.documents * documents.questions", Product(d.documents, d.questions), 1,
                 kRequestsMax},
                {"documents.question_tokens", 1. * d.question_tokens, 0, kTokensMax},
                {"documents.output_tokens", 1. * d.output_tokens, 1, kTokensMax},
                {"documents.document_tokens + question_tokens + output_tokens",
                 1. * d.document_tokens + d.question_tokens + d.output_tokens, 1, kTokensMax}});
}

absl::Status CheckArrival(const WorkloadOptions& options) {
  const ArrivalOptions& a = options.arrival;
  switch (a.kind) {
    case ArrivalKind::kTrace:
      if (options.kind != WorkloadKind::kTrace) {
        return Refuse("arrival.kind", "only a trace says when its requests arrive");
      }
      return Check({{"arrival.trace_speed", a.trace_speed, 1e-6, 1e6}});
    case ArrivalKind::kOffline:
      break;
    case ArrivalKind::kGamma:
      if (auto s = Check({{"arrival.cv", a.cv, 0.01, 100}}); !s.ok()) return s;
      [[fallthrough]];
    case ArrivalKind::kPoisson:
      return Check({{"arrival.rate_per_s", a.rate_per_s, 1e-6, 1e9}});
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const WorkloadOptions& options) {
  if (auto s = CheckArrival(options); !s.ok()) return s;
  if (options.kind == WorkloadKind::kTrace) {
    if (options.trace.path.empty()) return Refuse("trace.path", "is empty");
    return Check({{"trace.requests_max", 1. * options.trace.requests_max, 1, kRequestsMax}});
  }
  if (auto s = Check({{"chunk_tokens", 1. * options.chunk_tokens, 1, kTokensMax}}); !s.ok()) {
    return s;
  }
  return options.kind == WorkloadKind::kAgents ? CheckAgents(options.agents)
                                               : CheckDocuments(options.documents);
}

// Who the chunks of a generated workload belong to.
enum class Owner : uint64_t { kSystemPrompt, kSession, kDocument, kQuestion };

// A stream of tokens: a shared beginning, then what is its own.
struct Text {
  Owner head_kind = Owner::kSystemPrompt;
  uint64_t head = 0;  // Which of its kind.
  uint64_t head_tokens = 0;
  Owner tail_kind = Owner::kSession;
  uint64_t tail = 0;
};

uint64_t ChunkId(const Text& text, uint64_t position, uint32_t chunk_tokens) {
  // Fields of 4, 36 and 24 bits.
  static_assert(kTokensMax < (1u << 24));
  const bool in_head = (position + 1) * chunk_tokens <= text.head_tokens;
  const auto kind = static_cast<uint64_t>(in_head ? text.head_kind : text.tail_kind);
  return kind << 60 | (in_head ? text.head : text.tail) << 24 | position;
}

// A prompt that is the text's first `input` tokens, and its answer the next `output`.
SimRequest MakeRequest(const Text& text, uint64_t input, uint64_t output, uint32_t chunk_tokens) {
  SimRequest request;
  request.input_tokens = static_cast<uint32_t>(input);
  request.output_tokens = static_cast<uint32_t>(output);
  const uint64_t whole = input / chunk_tokens;
  const uint64_t whole_with_answer = (input + output) / chunk_tokens;
  request.chunks.reserve(whole);
  request.made.reserve(whole_with_answer - whole);
  for (uint64_t i = 0; i < whole_with_answer; ++i) {
    (i < whole ? request.chunks : request.made).push_back(ChunkId(text, i, chunk_tokens));
  }
  return request;
}

void Shuffle(std::vector<uint64_t>* numbers, SimRandom* random) {
  for (size_t left = numbers->size(); left > 1; --left) {
    std::swap((*numbers)[left - 1], (*numbers)[random->Below(left)]);
  }
}

// The text that each session begins with.
std::vector<Text> MakeSessions(const AgentOptions& a, SimRandom* random) {
  std::vector<uint64_t> picked(a.sessions);
  std::iota(picked.begin(), picked.end(), 0);
  Shuffle(&picked, random);
  const auto sharing = static_cast<uint64_t>(std::llround(a.shared * a.sessions));
  std::vector<Text> sessions(a.sessions);
  for (uint64_t i = 0; i < a.sessions; ++i) {
    sessions[picked[i]] = {Owner::kSystemPrompt, i % a.system_prompts,
                           i < sharing ? a.system_prompt_tokens : 0, Owner::kSession, picked[i]};
  }
  return sessions;
}

uint64_t DrawUserTokens(const AgentOptions& a, SimRandom* random) {
  const double s = a.user_spread;
  if (s == 0) return a.user_tokens;
  // The mean of exp(s * Normal) is exp(s^2 / 2).
  const double tokens = a.user_tokens * std::exp(s * random->Normal() - s * s / 2);
  return static_cast<uint64_t>(std::llround(std::clamp<double>(tokens, 1, kTokensMax)));
}

// Session by session, each one's turns in order.
absl::StatusOr<std::vector<SimRequest>> MakeAgents(const AgentOptions& a, uint32_t chunk_tokens,
                                                   SimRandom* random) {
  std::vector<SimRequest> requests;
  requests.reserve(uint64_t{a.sessions} * a.turns);
  for (const Text& text : MakeSessions(a, random)) {
    uint64_t tokens = a.system_prompt_tokens;
    for (uint32_t turn = 0; turn < a.turns; ++turn) {
      const uint64_t input = tokens + DrawUserTokens(a, random);
      tokens = input + a.output_tokens;
      if (tokens > kTokensMax) {
        return Refuse("agents.turns", absl::StrCat("turn ", turn + 1, " of a session has ", tokens,
                                                   " tokens, more than ", kTokensMax));
      }
      requests.push_back(MakeRequest(text, input, a.output_tokens, chunk_tokens));
      requests.back().session = text.tail;
    }
  }
  return requests;
}

// Document by document.
std::vector<SimRequest> MakeDocuments(const DocumentOptions& d, uint32_t chunk_tokens) {
  std::vector<SimRequest> requests;
  requests.reserve(uint64_t{d.documents} * d.questions);
  const uint64_t input = uint64_t{d.document_tokens} + d.question_tokens;
  for (uint64_t document = 0; document < d.documents; ++document) {
    for (uint32_t i = 0; i < d.questions; ++i) {
      const uint64_t question = requests.size();
      const Text text = {Owner::kDocument, document, d.document_tokens, Owner::kQuestion, question};
      requests.push_back(MakeRequest(text, input, d.output_tokens, chunk_tokens));
      requests.back().session = d.sticky ? document : question;
    }
  }
  return requests;
}

// Interleaves groups of `group_size` neighbours at random; the members of each stay in order.
std::vector<SimRequest> Interleave(std::vector<SimRequest> requests, uint64_t group_size,
                                   SimRandom* random) {
  std::vector<uint64_t> turns(requests.size());  // Whose turn it is.
  for (uint64_t i = 0; i < turns.size(); ++i) turns[i] = i / group_size;
  Shuffle(&turns, random);
  std::vector<uint64_t> next(requests.size() / group_size);
  for (uint64_t i = 0; i < next.size(); ++i) next[i] = i * group_size;
  std::vector<SimRequest> interleaved;
  interleaved.reserve(requests.size());
  for (const uint64_t group : turns) interleaved.push_back(std::move(requests[next[group]++]));
  return interleaved;
}

// Guesses which session a prompt of a trace belongs to. Prompts come in the order of the trace.
class SessionGuess {
 public:
  uint64_t Of(const std::vector<uint64_t>& chunks) {
    const auto known = std::find_if(chunks.rbegin(), chunks.rend(),
                                    [this](uint64_t chunk) { return ends_.contains(chunk); });
    const uint64_t session = known != chunks.rend() ? ends_.at(*known) : sessions_++;
    // A later turn ends a session further on, or branches off: both ends are the session's.
    if (!chunks.empty() && !seen_.contains(chunks.back())) ends_[chunks.back()] = session;
    seen_.insert(chunks.begin(), chunks.end());
    return session;
  }

 private:
  uint64_t sessions_ = 0;
  absl::flat_hash_set<uint64_t> seen_;
  // Of each last chunk that was new when it came: the session.
  absl::flat_hash_map<uint64_t, uint64_t> ends_;
};

absl::StatusOr<std::vector<SimRequest>> MakeTrace(const WorkloadOptions& options) {
  auto lines = replay::ReadTrace(options.trace.path, options.trace.requests_max);
  if (!lines.ok()) return lines.status();
  if (lines->empty()) return Refuse("trace.path", options.trace.path + " has no requests");
  const bool timed = options.arrival.kind == ArrivalKind::kTrace;
  SessionGuess session;
  std::vector<SimRequest> requests;
  requests.reserve(lines->size());
  for (const replay::Request& line : *lines) {
    const std::string place = absl::StrCat("request ", requests.size() + 1, " of the trace ");
    // Each is at most 2^53: the sum fits.
    if (line.input_tokens + line.output_tokens > kTokensMax) {
      return Refuse("trace.path", absl::StrCat(place, "has more than ", kTokensMax, " tokens"));
    }
    SimRequest request;
    request.input_tokens = static_cast<uint32_t>(line.input_tokens);
    request.output_tokens = static_cast<uint32_t>(line.output_tokens);
    // The last id may stand for a block that is not full.
    const uint64_t whole = std::min(line.ids.size(), line.input_tokens / kTraceChunkTokens);
    request.chunks.assign(line.ids.begin(), line.ids.begin() + static_cast<ptrdiff_t>(whole));
    request.session = session.Of(request.chunks);
    if (timed) {
      const double ns = 1. * kMillisecond * static_cast<double>(line.timestamp_ms);
      const double arrival = ns / options.arrival.trace_speed;
      if (arrival > kArrivalMaxNs) {
        return Refuse("arrival.trace_speed", place + "arrives after 1e9 s");
      }
      request.arrival = std::llround(arrival);
      if (!requests.empty() && request.arrival < requests.back().arrival) {
        return Refuse("trace.path", place + "goes back in time");
      }
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

// Gamma-distributed with this shape and scale 1. By Marsaglia and Tsang: the cube of a normal is
// nearly right, and throwing some draws away makes it exact.
double DrawGamma(double shape, SimRandom* random) {
  if (shape < 1) {
    // One of shape + 1 times this power of a uniform is one of shape. 1 - Real() is never 0.
    const double shrink = std::pow(1 - random->Real(), 1 / shape);
    return shrink * DrawGamma(shape + 1, random);
  }
  const double d = shape - 1. / 3;
  const double spread = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = random->Normal();
    const double root = 1 + spread * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    const double bound = x * x / 2 + d * (1 - v + std::log(v));
    if (std::log(1 - random->Real()) < bound) return d * v;
  }
}

// Between two arrivals, in means.
double DrawGap(const ArrivalOptions& a, SimRandom* random) {
  if (a.kind == ArrivalKind::kPoisson) return -std::log(1 - random->Real());
  const double shape = 1 / (a.cv * a.cv);
  return DrawGamma(shape, random) / shape;
}

absl::Status SetArrivals(const ArrivalOptions& a, SimRandom* random,
                         std::vector<SimRequest>* requests) {
  if (a.kind != ArrivalKind::kPoisson && a.kind != ArrivalKind::kGamma) return absl::OkStatus();
  double now = 0;
  for (SimRequest& request : *requests) {
    now += DrawGap(a, random) * kSecond / a.rate_per_s;
    if (now > kArrivalMaxNs) return Refuse("arrival.rate_per_s", "requests arrive after 1e9 s");
    request.arrival = std::llround(now);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SimRequest>> MakeRequests(const WorkloadOptions& options,
                                                     SimRandom* sizes, SimRandom* order) {
  if (options.kind == WorkloadKind::kTrace) return MakeTrace(options);
  const bool agents = options.kind == WorkloadKind::kAgents;
  absl::StatusOr<std::vector<SimRequest>> requests =
      agents ? MakeAgents(options.agents, options.chunk_tokens, sizes)
             : MakeDocuments(options.documents, options.chunk_tokens);
  if (!requests.ok() || options.order == WorkloadOrder::kClustered) return requests;
  const uint64_t group_size = agents ? options.agents.turns : options.documents.questions;
  return Interleave(*std::move(requests), group_size, order);
}

}  // namespace

absl::StatusOr<Workload> MakeWorkload(const WorkloadOptions& options) {
  if (auto s = CheckOptions(options); !s.ok()) return s;
  SimRandom seeds(options.seed);
  SimRandom sizes(seeds.Next());
  SimRandom order(seeds.Next());
  SimRandom arrivals(seeds.Next());
  auto requests = MakeRequests(options, &sizes, &order);
  if (!requests.ok()) return requests.status();
  if (auto s = SetArrivals(options.arrival, &arrivals, &*requests); !s.ok()) return s;
  const bool trace = options.kind == WorkloadKind::kTrace;
  return Workload{trace ? kTraceChunkTokens : options.chunk_tokens, *std::move(requests)};
}

double ReusableShare(const Workload& workload) {
  replay::PossibleHits cache;
  uint64_t hits = 0;
  uint64_t chunks = 0;
  for (const SimRequest& request : workload.requests) {
    hits += cache.LeadingHits(request.chunks);
    chunks += request.chunks.size();
    cache.Add(request.chunks);
    cache.Add(request.made);
  }
  return chunks == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(chunks);
}

}  // namespace kvstream::sim
