// kvstream-cache-bench: how many reads of a trace a memory of so many chunks answers, by policy,
// beside the most that any could (Belady: it knows what comes). Chunks are of one size. A request
// reads the leading run of chunks that a cache without bounds would have, and stores the rest; both
// come in. Output: one JSON object for each capacity and policy.
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "client/options.h"
#include "client/replay/possible_hits.h"
#include "client/replay/trace.h"
#include "server/sched/cache_policy.h"

namespace kvstream {
namespace {

struct Access {
  uint64_t id = 0;
  bool read = false;
};

std::vector<Access> AccessesOf(const std::vector<replay::Request>& requests, bool tails_first) {
  std::vector<Access> accesses;
  replay::PossibleHits possible;
  for (const replay::Request& request : requests) {
    const uint64_t hits = possible.LeadingHits(request.ids);
    possible.Add(request.ids);
    for (size_t i = 0; i < request.ids.size(); ++i) {
      const size_t at = tails_first ? request.ids.size() - 1 - i : i;
      accesses.push_back({request.ids[at], at < hits});
    }
  }
  return accesses;
}

uint64_t UniqueOf(const std::vector<Access>& accesses) {
  absl::flat_hash_set<uint64_t> ids;
  for (const Access& access : accesses) ids.insert(access.id);
  return ids.size();
}

KeyDigest KeyOf(uint64_t id) {
  KeyDigest key;
  std::memcpy(key.bytes.data(), &id, sizeof id);
  return key;
}

uint64_t HitsOf(const std::vector<Access>& accesses, sched::CachePolicyKind kind,
                uint64_t capacity) {
  const auto cache = sched::MakeCachePolicy(kind, capacity);
  uint64_t hits = 0;
  for (const Access& access : accesses) {
    const KeyDigest key = KeyOf(access.id);
    if (cache->Contains(key)) {
      hits += access.read ? 1 : 0;
      cache->Touch(key);
      continue;
    }
    while (cache->bytes() >= capacity) (void)cache->Evict([](const KeyDigest&) { return true; });
    cache->Insert(key, 1);
  }
  return hits;
}

// Lets go of what is read again last, be it the newcomer.
uint64_t MostHitsOf(const std::vector<Access>& accesses, uint64_t capacity) {
  constexpr uint64_t kNeverAgain = std::numeric_limits<uint64_t>::max();
  std::vector<uint64_t> next(accesses.size(), kNeverAgain);
  absl::flat_hash_map<uint64_t, uint64_t> seen;
  for (size_t i = accesses.size(); i-- > 0;) {
    const auto it = seen.find(accesses[i].id);
    if (it != seen.end()) next[i] = it->second;
    // A store of what is there brings nothing: only reads are worth keeping it for.
    if (accesses[i].read) seen[accesses[i].id] = i;
  }
  absl::flat_hash_map<uint64_t, uint64_t> in;
  std::set<std::pair<uint64_t, uint64_t>> by_next;
  uint64_t hits = 0;
  for (size_t i = 0; i < accesses.size(); ++i) {
    const uint64_t id = accesses[i].id;
    if (const auto it = in.find(id); it != in.end()) {
      hits += accesses[i].read ? 1 : 0;
      by_next.erase({it->second, id});
    }
    in[id] = next[i];
    by_next.emplace(next[i], id);
    if (in.size() > capacity) {
      in.erase(by_next.rbegin()->second);
      by_next.erase(std::prev(by_next.end()));
    }
  }
  return hits;
}

int Main(const std::vector<std::string>& arguments) {
  bool help = false;
  std::string trace;
  std::string order = "tails-first";
  const std::vector<Option> options{
      TextOption("--trace", "PATH", "requests, as kvstreamctl replay takes them", &trace),
      TextOption("--order", "ORDER", "tails-first (default) or heads-first: of a request's chunks",
                 &order),
      FlagOption("--help", "print this and exit", &help),
  };
  const auto rest = ParseOptions(arguments, options, Positionals::kMixed);
  if (help) {
    std::printf("Usage: kvstream-bench cache --trace PATH [options]\n%s",
                OptionsHelp(options).c_str());
    return 0;
  }
  if (!rest.ok() || !rest->empty() || trace.empty() ||
      (order != "tails-first" && order != "heads-first")) {
    std::fprintf(stderr, "kvstream-bench cache: needs --trace PATH\n%s",
                 OptionsHelp(options).c_str());
    return 2;
  }
  const auto requests = replay::ReadTrace(trace, std::numeric_limits<uint64_t>::max());
  if (!requests.ok()) {
    std::fprintf(stderr, "kvstream-bench cache: %s\n", requests.status().ToString().c_str());
    return 1;
  }
  const auto accesses = AccessesOf(*requests, order == "tails-first");
  uint64_t reads = 0;
  for (const Access& access : accesses) reads += access.read ? 1 : 0;
  const uint64_t unique = UniqueOf(accesses);
  for (const uint64_t percent : {5, 10, 20, 40}) {
    const uint64_t capacity = unique * percent / 100;
    const auto report = [&](const char* policy, uint64_t hits) {
      std::printf(
          "{\"percent\": %d, \"chunks\": %llu, \"policy\": \"%s\", \"reads\": %llu, "
          "\"hits\": %llu, \"rate\": %.4f}\n",
          static_cast<int>(percent), static_cast<unsigned long long>(capacity), policy,
          static_cast<unsigned long long>(reads), static_cast<unsigned long long>(hits),
          static_cast<double>(hits) / static_cast<double>(reads));
    };
    report("lru", HitsOf(accesses, sched::CachePolicyKind::kLru, capacity));
    report("s3-fifo", HitsOf(accesses, sched::CachePolicyKind::kS3Fifo, capacity));
    report("arc", HitsOf(accesses, sched::CachePolicyKind::kArc, capacity));
    report("belady", MostHitsOf(accesses, capacity));
  }
  return 0;
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) {
  return kvstream::Main(std::vector<std::string>(argv + 1, argv + argc));
}
