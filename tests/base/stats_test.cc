#include "server/base/stats.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace kvstream {
namespace {

TEST(HistogramTest, ObservationFallsIntoTheFirstBucketThatHoldsIt) {
  const struct {
    uint64_t us;
    size_t bucket;
  } cases[] = {{0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {1024, 10}, {1025, 11}};
  for (const auto& c : cases) {
    Histogram histogram;
    histogram.Observe(c.us);
    EXPECT_EQ(histogram.Count(c.bucket), 1u) << c.us;
    EXPECT_LE(c.us, Histogram::UpperBoundUs(c.bucket));
    EXPECT_EQ(histogram.SumUs(), c.us);
  }
}

TEST(HistogramTest, LastBucketTakesAllAbove) {
  Histogram histogram;
  histogram.Observe(uint64_t{1} << 31);
  histogram.Observe((uint64_t{1} << 31) + 1);
  histogram.Observe(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(histogram.Count(31), 1u);
  EXPECT_EQ(histogram.Count(Histogram::kBuckets - 1), 2u);
}

TEST(GaugeTest, GoesUpAndDown) {
  Gauge gauge;
  gauge.Set(5);
  gauge.Add(3);
  gauge.Sub(2);
  EXPECT_EQ(gauge.Get(), 6u);
}

TEST(CounterTest, AddsOneByDefault) {
  Counter counter;
  counter.Add();
  counter.Add(4);
  EXPECT_EQ(counter.Get(), 5u);
}

}  // namespace
}  // namespace kvstream
