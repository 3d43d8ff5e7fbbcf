// What one core does with payload, stage by stage: the hash that verifies a segment, the copy into
// a host buffer, and both in one pass as the daemon does them. Segments lie in far more memory than
// any cache holds, as segments that a disk has just written do.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "server/base/types.h"
#include "server/store/chunk_format.h"

namespace kvstream {
namespace {

constexpr uint64_t kSegmentBytes = 4 * kMiB;
constexpr uint64_t kMemoryBytes = 512 * kMiB;

// Written once, so that every page is there.
std::byte* MakeMemory() {
  void* memory =
      mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  std::memset(memory, 0x5A, kMemoryBytes);
  return static_cast<std::byte*>(memory);
}

struct Segments {
  std::byte* source = MakeMemory();
  std::byte* destination = MakeMemory();
  uint64_t at = 0;

  void Next() { at = (at + kSegmentBytes) % kMemoryBytes; }
  std::span<const std::byte> Source() const { return {source + at, kSegmentBytes}; }
};

Segments& Shared() {
  static auto& segments = *new Segments;
  return segments;
}

template <typename Work>
void ForEachSegment(benchmark::State& state, Work&& work) {
  Segments& segments = Shared();
  for (auto _ : state) {
    work(segments);
    segments.Next();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) *
                          static_cast<int64_t>(kSegmentBytes));
}

void BM_Verify(benchmark::State& state) {
  ForEachSegment(state, [](const Segments& s) {
    benchmark::DoNotOptimize(store::SegmentChecksum(KeyDigest{}, 1, s.Source()));
  });
}
BENCHMARK(BM_Verify);

void BM_Copy(benchmark::State& state) {
  ForEachSegment(state, [](const Segments& s) {
    std::memcpy(s.destination + s.at, s.source + s.at, kSegmentBytes);
    benchmark::ClobberMemory();
  });
}
BENCHMARK(BM_Copy);

void BM_VerifyAndCopy(benchmark::State& state) {
  ForEachSegment(state, [](const Segments& s) {
    const std::array<std::byte*, 1> destinations{s.destination + s.at};
    benchmark::DoNotOptimize(store::CopyAndChecksum(KeyDigest{}, 1, s.Source(), destinations));
  });
}
BENCHMARK(BM_VerifyAndCopy);

}  // namespace
}  // namespace kvstream

BENCHMARK_MAIN();
