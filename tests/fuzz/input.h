// What a fuzz target reads its bytes through: fields of fixed width one after another, so that a
// mutation of one leaves the meaning of the others alone. Past the end everything is zero, so every
// input means something. One thread; does not own the bytes.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvstream::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(data, size) {}

  bool empty() const { return bytes_.empty(); }

  // The next little-endian integer.
  template <std::unsigned_integral Int>
  Int Take() {
    uint64_t value = 0;
    const auto taken = Advance(sizeof(Int));
    for (size_t i = 0; i < taken.size(); ++i) value |= uint64_t{taken[i]} << (8 * i);
    return static_cast<Int>(value);
  }

  // One of 0 .. n-1, from one byte. REQUIRES: 0 < n <= 256.
  uint32_t Below(uint32_t n) { return Take<uint8_t>() % n; }

  // The next bytes, at most `most`.
  std::string Bytes(size_t most) {
    const auto taken = Advance(most);
    return std::string(taken.begin(), taken.end());
  }
  std::string Rest() { return Bytes(bytes_.size()); }

 private:
  std::span<const uint8_t> Advance(size_t most) {
    const auto taken = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

  std::span<const uint8_t> bytes_;
};

}  // namespace kvstream::fuzz
