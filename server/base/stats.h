// Numbers that one thread writes and any thread reads: relaxed atomics, so that a scrape costs the
// loop nothing and works while the loop is stuck. The metrics room gives them their names.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvstream {

// Only grows.
class Counter {
 public:
  // Returns what it was before.
  uint64_t Add(uint64_t n = 1) { return value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Goes up and down.
class Gauge {
 public:
  void Set(uint64_t v) { value_.store(v, std::memory_order_relaxed); }
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  void Sub(uint64_t n = 1) { value_.fetch_sub(n, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Durations in microseconds, in buckets whose upper bounds are powers of two: 1, 2, 4 .. 2^31,
// and one for all above.
class Histogram {
 public:
  static constexpr size_t kBuckets = 33;

  static constexpr uint64_t UpperBoundUs(size_t bucket) { return uint64_t{1} << bucket; }

  void Observe(uint64_t us) {
    const size_t bucket = us <= 1 ? 0 : static_cast<size_t>(std::bit_width(us - 1));
    counts_[bucket < kBuckets ? bucket : kBuckets - 1].Add();
    sum_us_.Add(us);
  }
  uint64_t Count(size_t bucket) const { return counts_[bucket].Get(); }
  uint64_t SumUs() const { return sum_us_.Get(); }

 private:
  std::array<Counter, kBuckets> counts_;
  Counter sum_us_;
};

}  // namespace kvstream
