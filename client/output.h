// What kvstreamctl prints: aligned tables for people, JSON objects for programs. Stateless; any
// thread.
#pragma once

#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvstream {

// Rows of cells, each column as wide as its widest cell; the first row is the heading. A column of
// numbers alone is aligned to the right, with its units below each other.
std::string FormatTable(std::vector<std::vector<std::string>> rows);

// Three digits and a unit, such as "1.50 GiB"; below 1 KiB exact.
std::string FormatBytes(uint64_t bytes);
// Grouped by thousands, such as "15,771".
std::string FormatCount(uint64_t count);
// With that many decimals.
std::string FormatDecimal(double value, int decimals);
// Two digits for each byte.
std::string FormatHex(std::string_view bytes);
// The bytes of such digits; nothing where they are none.
std::optional<std::string> ParseHex(std::string_view digits);
// With the largest unit that it has two of, such as "36 h"; "119 s".
std::string FormatAge(uint64_t seconds);

// One line of JSON, without a line end. Field names as in the .proto files, absent fields included;
// 64-bit integers are strings and bytes base64, as protobuf's JSON has it.
std::string ToJson(const google::protobuf::Message& message);

// Fields of an object that is no message. Integers are exact up to 2^53.
void SetNumber(google::protobuf::Struct* object, const std::string& name, double value);
void SetText(google::protobuf::Struct* object, const std::string& name, std::string_view value);
void SetBool(google::protobuf::Struct* object, const std::string& name, bool value);

}  // namespace kvstream
