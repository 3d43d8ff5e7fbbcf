// Request traces: JSON lines as published with the Mooncake paper. Each line is an object with
// timestamp (ms from the start), input_length and output_length (tokens) and hash_ids: one id for
// each block of the prompt. Equal ids mean equal prefixes up to and including that block, so an id
// names a chunk.
//
// Stateless; any thread.
// Errors: NOT_FOUND or UNAVAILABLE for a file that cannot be read, INVALID_ARGUMENT with the line's
// number for a bad line.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvstream::replay {

// Ids fit into 36 bits, so that each word of a chunk can tell where it belongs (content.h).
inline constexpr uint64_t kIdMax = (uint64_t{1} << 36) - 1;

// Tokens in a block of the published traces.
inline constexpr uint32_t kBlockTokens = 512;

struct Request {
  uint64_t timestamp_ms = 0;
  uint64_t input_tokens = 0;
  uint64_t output_tokens = 0;
  // In prefix order; may be empty.
  std::vector<uint64_t> ids;
};

// Other fields than the four are allowed and mean nothing.
absl::StatusOr<Request> ParseTraceLine(const std::string& line);

// The first `requests_max` requests of a file. Empty lines are skipped.
absl::StatusOr<std::vector<Request>> ReadTrace(const std::string& path, uint64_t requests_max);

}  // namespace kvstream::replay
