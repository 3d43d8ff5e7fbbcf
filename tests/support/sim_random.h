// Random numbers for simulations: the same on every platform for the same seed, which the standard
// distributions are not.
//
// Thread rule: one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace kvstream {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [0, n). REQUIRES: n > 0.
  uint64_t Below(uint64_t n) { return Next() % n; }
  // In [low, high].
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  // In [0, 1).
  double Real() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  // Standard normal (Box-Muller).
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Real()));
    return radius * std::cos(2 * std::numbers::pi * Real());
  }
  bool Chance(double probability) { return Real() < probability; }

 private:
  uint64_t state_;
};

}  // namespace kvstream
