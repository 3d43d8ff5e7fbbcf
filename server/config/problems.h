// Collects what is wrong with a config, so that an operator sees everything at once. Each check
// returns the value it was given, so that a conversion reads as one assignment a field; a value
// that failed its check goes no further, because the conversion then ends in an error.
//
// Thread rule: one thread. Ownership: owns its lines. Errors: none of its own; see empty().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace kvstream::config {

struct Range {
  uint64_t min = 0;
  uint64_t max = 0;
};

class Problems {
 public:
  // Adds the line "<field>: <cause>".
  void Add(std::string_view field, std::string_view cause);
  // Adds a finished line.
  void AddLine(std::string line) { lines_.push_back(std::move(line)); }

  bool empty() const { return lines_.empty(); }
  // INVALID_ARGUMENT with every line. REQUIRES: !empty().
  absl::Status ToStatus() const;

  // The number lies in the range.
  uint64_t InRange(std::string_view field, uint64_t value, Range range);
  // The number is a power of two in the range.
  uint64_t PowerOfTwo(std::string_view field, uint64_t value, Range range);
  // The text is an absolute path of at most `bytes_max` bytes.
  std::string AbsolutePath(std::string_view field, const std::string& value, size_t bytes_max);

 private:
  std::vector<std::string> lines_;
};

}  // namespace kvstream::config
