// A line of a replay trace. What is accepted has numbers that a double holds and ids within kIdMax,
// and written out again it is the same request.
#include <cstdint>
#include <string>

#include "client/replay/trace.h"
#include "server/base/check.h"

namespace kvstream::replay {
namespace {

std::string ToLine(const Request& request) {
  std::string line = "{\"timestamp\": " + std::to_string(request.timestamp_ms) +
                     ", \"input_length\": " + std::to_string(request.input_tokens) +
                     ", \"output_length\": " + std::to_string(request.output_tokens) +
                     ", \"hash_ids\": [";
  for (size_t i = 0; i < request.ids.size(); ++i) {
    line.append(i == 0 ? "" : ", ").append(std::to_string(request.ids[i]));
  }
  return line + "]}";
}

void CheckLine(const std::string& line) {
  const auto request = ParseTraceLine(line);
  if (!request.ok()) {
    KV_CHECK(absl::IsInvalidArgument(request.status()));
    return;
  }
  constexpr uint64_t kExact = uint64_t{1} << 53;
  KV_CHECK(request->timestamp_ms <= kExact && request->input_tokens <= kExact &&
           request->output_tokens <= kExact);
  for (const uint64_t id : request->ids) KV_CHECK(id <= kIdMax);
  const auto again = ParseTraceLine(ToLine(*request));
  KV_CHECK(again.ok() && again->timestamp_ms == request->timestamp_ms &&
           again->input_tokens == request->input_tokens &&
           again->output_tokens == request->output_tokens && again->ids == request->ids);
}

}  // namespace
}  // namespace kvstream::replay

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvstream::replay::CheckLine(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
