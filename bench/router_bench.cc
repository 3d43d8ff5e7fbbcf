// kvstream-router-bench: what the router itself costs, without tiers, copies or clients. Each
// iteration ends one read and its copy and lets the router claim the next segment. The argument is
// the number of segments that wait. `allocations` are those of one iteration.
#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <variant>
#include <vector>

#include "server/base/check.h"
#include "server/sched/router.h"

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace kvstream::sched {
namespace {

constexpr ChunkShape kChunk{16 * kMiB, 4 * kMiB};

class Bench {
 public:
  explicit Bench(uint64_t segments) : slots_(kGiB, kGiB), router_(Options(), &slots_) {
    BatchSpec spec;
    spec.id = OperationId{1};
    spec.joint = true;
    spec.requests.emplace_back();
    for (uint64_t c = 0; c < segments / kChunk.segments(); ++c) {
      Item item;
      item.shape = kChunk;
      Source source;
      std::memcpy(source.content.bytes.data(), &c, sizeof c);
      source.tiers = TierSet::FromBits(3);
      item.sources.push_back(source);
      spec.requests.back().push_back(std::move(item));
    }
    router_.Admit(std::move(spec), now_);
    Take();
  }

  // False when nothing is left to read.
  bool Turn() {
    if (reading_.empty()) return false;
    now_ += 100 * kMicrosecond;
    const Ticket ticket = reading_.front();
    reading_.erase(reading_.begin());  // It holds two windows' worth, and a deque would allocate.
    router_.OnRead(ticket, absl::StatusCode::kOk, now_);
    Take();
    router_.OnCopy(ticket, copying_, absl::StatusCode::kOk, now_);
    Take();
    return true;
  }

 private:
  static RouterOptions Options() {
    RouterOptions options;
    options.lanes.resize(2, LaneOptions{64 * kMiB, 32 * kMiB, 100 * kMillisecond});
    return options;
  }

  void Take() {
    router_.TakeCommands(&commands_);
    for (const Command& command : commands_) {
      if (const auto* read = std::get_if<ReadSegment>(&command)) reading_.push_back(read->ticket);
      if (const auto* copy = std::get_if<CopySegment>(&command)) copying_ = copy->items;
    }
  }

  SlotAllocator slots_;
  Router router_;
  TimeNs now_ = kSecond;
  std::vector<Command> commands_;
  std::vector<Ticket> reading_;
  absl::InlinedVector<ItemRef, 2> copying_;
};

void BM_ClaimAndCompletion(benchmark::State& state) {
  const auto segments = static_cast<uint64_t>(state.range(0));
  std::unique_ptr<Bench> bench;
  uint64_t left = 0;
  uint64_t counted = 0;
  uint64_t since = 0;
  for (auto _ : state) {
    if (left == 0) {
      state.PauseTiming();
      if (bench) counted += allocations.load() - since;
      bench = std::make_unique<Bench>(segments);
      for (uint64_t i = 0; i < segments / 20; ++i) KV_CHECK(bench->Turn());
      left = segments / 20;  // So that nearly as much waits at the end as was said.
      since = allocations.load();
      state.ResumeTiming();
    }
    KV_CHECK(bench->Turn());
    --left;
  }
  counted += allocations.load() - since;
  state.counters["allocations"] =
      static_cast<double>(counted) / static_cast<double>(state.iterations());
}
BENCHMARK(BM_ClaimAndCompletion)->RangeMultiplier(10)->Range(1000, 1'000'000);

}  // namespace
}  // namespace kvstream::sched

BENCHMARK_MAIN();
