// Statuses that name the refused field: "requests[2].chunks[7].prefix_hash: 3 bytes, must be
// 16 .. 64". The path is put together from the inside out, so a valid message builds none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace kvstream::rpc {

// INVALID_ARGUMENT "<field>: <cause>".
absl::Status InvalidField(std::string_view field, std::string_view cause);

// INVALID_ARGUMENT "<field>: <value><unit>, must be <min> .. <max>" when the value lies outside.
struct FieldRange {
  uint64_t min = 0;
  uint64_t max = 0;
};
absl::Status CheckRange(std::string_view field, uint64_t value, FieldRange range,
                        std::string_view unit = "");

// The same status with "<field>[<index>]." before its message.
absl::Status InsideElement(std::string_view field, int index, const absl::Status& status);

// "<field>[<index>]".
std::string Element(std::string_view field, int index);

}  // namespace kvstream::rpc
