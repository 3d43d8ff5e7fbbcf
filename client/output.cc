#include "client/output.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>

namespace kvstream {
namespace {

// A number, with a unit or without, or the dash that stands for none.
bool IsQuantity(const std::string& cell) {
  return cell == "-" || (!cell.empty() && std::isdigit(static_cast<unsigned char>(cell[0])));
}

// Length of a quantity's unit, with the space before it.
size_t UnitSize(const std::string& cell) {
  return cell.size() - std::min(cell.size(), cell.find(' '));
}

}  // namespace

std::string FormatTable(std::vector<std::vector<std::string>> rows) {
  struct Column {
    size_t width = 0;
    size_t unit = 0;
    bool right = true;
  };
  std::vector<Column> columns;
  for (const auto& row : rows) {
    columns.resize(std::max(columns.size(), row.size()));
    for (size_t i = 0; i < row.size() && &row != &rows.front(); ++i) {
      if (!IsQuantity(row[i])) columns[i].right = false;
      columns[i].unit = std::max(columns[i].unit, UnitSize(row[i]));
    }
  }
  for (auto& row : rows) {
    for (size_t i = 0; i < row.size() && &row != &rows.front(); ++i) {
      const size_t unit = UnitSize(row[i]);
      if (columns[i].right && unit > 0) row[i].append(columns[i].unit - unit, ' ');
    }
  }
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      columns[i].width = std::max(columns[i].width, row[i].size());
    }
  }
  std::string table;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(columns[i].width - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (columns[i].right ? pad + row[i] : row[i] + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + "\n";
  }
  return table;
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return FormatDecimal(value, value < 10 ? 2 : value < 100 ? 1 : 0) + " " + kUnits[unit];
}

std::string FormatCount(uint64_t count) {
  std::string digits = std::to_string(count);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string FormatDecimal(double value, int decimals) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string FormatHex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::optional<std::string> ParseHex(std::string_view digits) {
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    unsigned int byte = 0;
    const char* const end = digits.data() + i + 2;
    const auto parsed = std::from_chars(digits.data() + i, end, byte, 16);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

std::string FormatAge(uint64_t seconds) {
  struct Unit {
    uint64_t seconds;
    const char* name;
  };
  constexpr Unit kUnits[] = {{86400, " d"}, {3600, " h"}, {60, " min"}};
  for (const Unit& unit : kUnits) {
    if (seconds >= 2 * unit.seconds) return FormatCount(seconds / unit.seconds) + unit.name;
  }
  return FormatCount(seconds) + " s";
}

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // Cannot fail for messages of this project: none holds an Any.
  (void)google::protobuf::util::MessageToJsonString(message, &json, options);
  return json;
}

void SetNumber(google::protobuf::Struct* object, const std::string& name, double value) {
  (*object->mutable_fields())[name].set_number_value(value);
}

void SetText(google::protobuf::Struct* object, const std::string& name, std::string_view value) {
  (*object->mutable_fields())[name].set_string_value(std::string(value));
}

void SetBool(google::protobuf::Struct* object, const std::string& name, bool value) {
  (*object->mutable_fields())[name].set_bool_value(value);
}

}  // namespace kvstream
