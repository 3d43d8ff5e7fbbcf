// A worker for the tests of real faults, which kill it or its daemon. Chunks hold what their keys
// say, so it needs to keep no byte to know a wrong one.
//
//   kvstream_e2e_mixed_load load SOCKET SEED FIRST COUNT ROUNDS
//     Reads, stores, lookups with and without a lease, and cancels, of keys FIRST .. FIRST + COUNT
//     - 1. Prints "round", its number and the keys that it has made durable.
//   kvstream_e2e_mixed_load store SOCKET, kvstream_e2e_mixed_load read SOCKET
//     Stores the keys on stdin durably, or reads them. Prints a line: right, missing.
//
// Exit codes: 0, 1 when the session was lost or refused something, 3 when a byte was wrong.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/base/clock.h"
#include "tests/support/test_daemon.h"

namespace kvstream {
namespace {

const Worker::Shape kShape{
    .chunk_bytes = 64 * 1024, .segment_bytes = 16 * 1024, .buffer_bytes = 64 * 64 * 1024};
// Reads have the first half of the buffer, stores the second.
constexpr size_t kHalf = 32;
constexpr size_t kMost = 24;  // Chunks in an operation.

// Of a read: how many chunks it delivered. Ends the process when one of them is not what it was
// stored as.
size_t CheckRead(const Worker& worker, const std::vector<uint64_t>& keys,
                 const v1::RequestDone& done) {
  std::vector<uint32_t> valid(done.other_valid().begin(), done.other_valid().end());
  for (uint32_t i = 0; i < done.leading_valid(); ++i) valid.push_back(i);
  for (const uint32_t i : valid) {
    if (worker.Holds(keys[i], i)) continue;
    std::printf("wrong %llu\n", static_cast<unsigned long long>(keys[i]));
    std::fflush(stdout);
    std::_Exit(3);
  }
  return valid.size();
}

class MixedLoad {
 public:
  MixedLoad(const std::string& socket, uint64_t seed, uint64_t first, uint64_t count)
      : worker_(socket, kShape), random_(seed), first_(first), count_(count) {}

  // False when the session is lost.
  bool Round(uint64_t number) {
    const auto read_keys = Some();
    const auto store_keys = Some();
    for (size_t i = 0; i < read_keys.size(); ++i) worker_.Poison(i);
    for (size_t i = 0; i < store_keys.size(); ++i) worker_.Fill(store_keys[i], kHalf + i);
    if (Chance(3) && !Look(read_keys)) return false;
    v1::Store message = worker_.StoreOf(store_keys, kHalf);
    const bool durable = Chance(2);
    message.set_want_durable(durable);
    const auto read = worker_.client().ReadStep(worker_.StepOf(read_keys));
    const auto store = worker_.client().Store(std::move(message));
    if (!read.ok() || !store.ok()) return false;
    if (Chance(5) && !CancelSoon(**read)) return false;
    if (Chance(5) && !CancelSoon(**store)) return false;
    // Their own deadlines are one patience away.
    if (!(*read)->WaitEnded(2 * kPatience) || !(*store)->WaitEnded(2 * kPatience)) return false;
    CheckRead(worker_, read_keys, (*read)->results().at(0));
    if (!worker_.client().session_status().ok()) return false;
    std::string line = "round " + std::to_string(number);
    const auto chunks = (*store)->chunks();
    for (size_t i = 0; durable && (*store)->status().ok() && i < chunks.size(); ++i) {
      if (chunks[i].code == v1::OK) line += " " + std::to_string(store_keys[i]);
    }
    std::puts(line.c_str());
    std::fflush(stdout);
    return true;
  }

 private:
  bool Chance(uint64_t one_in) { return random_() % one_in == 0; }

  // Keys that follow one another.
  std::vector<uint64_t> Some() {
    const uint64_t size = 1 + random_() % std::min<uint64_t>(kMost, count_);
    return Keys(first_ + random_() % (count_ - size + 1), size);
  }

  bool Look(const std::vector<uint64_t>& keys) {
    v1::LookupRequest request;
    request.set_namespace_id(worker_.namespace_id());
    for (const uint64_t key : keys) AddPrefixHash(worker_.At(key, 0).prefix_hash(), &request);
    if (Chance(2)) {
      request.set_lease_ms(60000);
      request.set_session_id(worker_.client().session_id());
    }
    const auto reply = worker_.client().Lookup(std::move(request));
    if (!reply.ok()) return false;
    // The session's end gives the others back.
    return reply->lease_id() == 0 || Chance(4) || worker_.client().Release(reply->lease_id()).ok();
  }

  bool CancelSoon(const Operation& operation) {
    const TimeNs until = Now() + static_cast<TimeNs>(random_() % (2 * kMillisecond));
    while (Now() < until) std::this_thread::yield();
    return worker_.client().Cancel(operation).ok();
  }

  Worker worker_;
  std::mt19937_64 random_;
  const uint64_t first_;
  const uint64_t count_;
};

int StoreOrRead(const std::string& socket, bool store) {
  std::vector<uint64_t> keys;
  for (uint64_t key; std::cin >> key;) keys.push_back(key);
  Worker worker(socket, kShape);
  size_t right = 0;
  for (size_t i = 0; i < keys.size(); i += kHalf) {
    const std::vector<uint64_t> some(
        keys.begin() + static_cast<ptrdiff_t>(i),
        keys.begin() + static_cast<ptrdiff_t>(std::min(keys.size(), i + kHalf)));
    if (!store) {
      right += CheckRead(worker, some, worker.Get(some));
    } else if (worker.Put(some).ok()) {
      right += some.size();
    }
    if (!worker.client().session_status().ok()) return 1;
  }
  std::printf("%zu %zu\n", right, keys.size() - right);
  return 0;
}

int Main(const std::vector<std::string>& args) {
  if (args.size() == 2 && (args[0] == "store" || args[0] == "read")) {
    return StoreOrRead(args[1], args[0] == "store");
  }
  if (args.size() != 6 || args[0] != "load") return 2;
  MixedLoad load(args[1], std::stoull(args[2]), std::stoull(args[3]), std::stoull(args[4]));
  const uint64_t rounds = std::stoull(args[5]);
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (!load.Round(round)) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) { return kvstream::Main({argv + 1, argv + argc}); }
