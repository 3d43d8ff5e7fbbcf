#include "client/replay/trace.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <utility>

#include "client/status_convert.h"

namespace kvstream::replay {
namespace {

absl::StatusOr<uint64_t> ToInteger(const google::protobuf::Value& value, const std::string& field,
                                   uint64_t max) {
  const double number = value.number_value();
  if (value.kind_case() != google::protobuf::Value::kNumberValue || number < 0 ||
      number != std::floor(number) || number > static_cast<double>(max)) {
    return absl::InvalidArgumentError("field " + field + " is not an integer within 0 .. " +
                                      std::to_string(max));
  }
  return static_cast<uint64_t>(number);
}

absl::Status TakeInteger(const google::protobuf::Struct& object, const std::string& field,
                         uint64_t* target) {
  const auto found = object.fields().find(field);
  if (found == object.fields().end()) {
    return absl::InvalidArgumentError("field " + field + " is missing");
  }
  // What a double holds exactly.
  const auto integer = ToInteger(found->second, field, uint64_t{1} << 53);
  if (!integer.ok()) return integer.status();
  *target = *integer;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Request> ParseTraceLine(const std::string& line) {
  google::protobuf::Struct object;
  const auto parsed = google::protobuf::util::JsonStringToMessage(line, &object);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError("not a JSON object: " + std::string(parsed.message()));
  }
  Request request;
  for (const auto& [field, target] : {std::pair("timestamp", &request.timestamp_ms),
                                      std::pair("input_length", &request.input_tokens),
                                      std::pair("output_length", &request.output_tokens)}) {
    if (auto s = TakeInteger(object, field, target); !s.ok()) return s;
  }
  const auto ids = object.fields().find("hash_ids");
  if (ids == object.fields().end() || !ids->second.has_list_value()) {
    return absl::InvalidArgumentError("field hash_ids is not a list");
  }
  for (const google::protobuf::Value& value : ids->second.list_value().values()) {
    const auto id = ToInteger(value, "hash_ids", kIdMax);
    if (!id.ok()) return id.status();
    request.ids.push_back(*id);
  }
  return request;
}

absl::StatusOr<std::vector<Request>> ReadTrace(const std::string& path, uint64_t requests_max) {
  std::ifstream file(path);
  if (!file) return FromErrno(errno, "open trace", path);
  std::vector<Request> requests;
  std::string line;
  for (uint64_t number = 1; requests.size() < requests_max && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto request = ParseTraceLine(line);
    if (!request.ok()) {
      return absl::InvalidArgumentError("read trace " + path + ": line " + std::to_string(number) +
                                        ": " + std::string(request.status().message()));
    }
    requests.push_back(*std::move(request));
  }
  if (file.bad()) return FromErrno(EIO, "read trace", path);
  return requests;
}

}  // namespace kvstream::replay
