#include "client/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

namespace kvstream {
namespace {

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array kUnits = {Unit{"", 1},
                               Unit{"B", 1},
                               Unit{"KiB", uint64_t{1} << 10},
                               Unit{"MiB", uint64_t{1} << 20},
                               Unit{"GiB", uint64_t{1} << 30},
                               Unit{"TiB", uint64_t{1} << 40}};

std::string Quoted(std::string_view text) { return std::string("\"").append(text).append("\""); }

// The number at the front of `text`, which is cut off it.
std::optional<uint64_t> TakeNumber(std::string_view* text) {
  uint64_t number = 0;
  const char* end = text->data() + text->size();
  const auto [next, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc()) return std::nullopt;
  *text = std::string_view(next, static_cast<size_t>(end - next));
  return number;
}

absl::Status CheckRange(uint64_t value, Range range) {
  if (value >= range.min && value <= range.max) return absl::OkStatus();
  return absl::InvalidArgumentError(std::to_string(value) + " is not within " +
                                    std::to_string(range.min) + " .. " + std::to_string(range.max));
}

absl::Status Refuse(std::string_view name, std::string_view cause) {
  return absl::InvalidArgumentError(std::string("option ").append(name).append(": ").append(cause));
}

}  // namespace

Option FlagOption(std::string name, std::string help, bool* target) {
  return {std::move(name), "", std::move(help), [target](std::string_view) {
            *target = true;
            return absl::OkStatus();
          }};
}

Option TextOption(std::string name, std::string value, std::string help, std::string* target) {
  return {std::move(name), std::move(value), std::move(help), [target](std::string_view text) {
            *target = text;
            return absl::OkStatus();
          }};
}

Option ListOption(std::string name, std::string value, std::string help,
                  std::vector<std::string>* target) {
  return {std::move(name), std::move(value), std::move(help), [target](std::string_view text) {
            target->emplace_back(text);
            return absl::OkStatus();
          }};
}

Option NumberOption(std::string name, std::string value, std::string help, Range range,
                    uint64_t* target) {
  return {std::move(name), std::move(value), std::move(help),
          [range, target](std::string_view text) {
            const std::string_view whole = text;
            const std::optional<uint64_t> number = TakeNumber(&text);
            if (!number || !text.empty()) {
              return absl::InvalidArgumentError(Quoted(whole) + " is not a number");
            }
            if (auto s = CheckRange(*number, range); !s.ok()) return s;
            *target = *number;
            return absl::OkStatus();
          }};
}

Option SizeOption(std::string name, std::string help, Range range, uint64_t* target) {
  return {std::move(name), "SIZE", std::move(help), [range, target](std::string_view text) {
            const absl::StatusOr<uint64_t> size = ParseSize(text);
            if (!size.ok()) return size.status();
            if (auto s = CheckRange(*size, range); !s.ok()) return s;
            *target = *size;
            return absl::OkStatus();
          }};
}

absl::StatusOr<std::vector<std::string>> ParseOptions(const std::vector<std::string>& arguments,
                                                      const std::vector<Option>& options,
                                                      Positionals positionals) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    // A lone dash is a name that people give to standard input.
    if (argument.size() < 2 || argument[0] != '-') {
      if (positionals == Positionals::kStop) {
        rest.assign(arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
        return rest;
      }
      rest.push_back(argument);
      continue;
    }
    if (argument == "--") {
      rest.insert(rest.end(), arguments.begin() + static_cast<ptrdiff_t>(i) + 1, arguments.end());
      return rest;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const Option& o) { return o.name == name; });
    if (option == options.end()) return Refuse(name, "unknown");
    std::string value;
    if (option->value.empty()) {
      if (equals != std::string::npos) return Refuse(name, "takes no value");
    } else if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (++i < arguments.size()) {
      value = arguments[i];
    } else {
      return Refuse(name, "needs a value, " + option->value);
    }
    if (auto s = option->set(value); !s.ok()) {
      const std::string cause(s.message());
      return Refuse(name, cause);
    }
  }
  return rest;
}

std::string OptionsHelp(const std::vector<Option>& options) {
  const auto left_of = [](const Option& o) {
    return "  " + o.name + (o.value.empty() ? "" : " " + o.value);
  };
  size_t width = 0;
  for (const Option& option : options) width = std::max(width, left_of(option).size());
  std::string help;
  for (const Option& option : options) {
    const std::string left = left_of(option);
    help += left + std::string(width - left.size() + 2, ' ');
    // Further lines of a long text begin below the first.
    for (const char c : option.help) {
      help += c;
      if (c == '\n') help += std::string(width + 2, ' ');
    }
    help += '\n';
  }
  return help;
}

absl::StatusOr<uint64_t> ParseSize(std::string_view text) {
  const std::string_view whole = text;
  const std::optional<uint64_t> number = TakeNumber(&text);
  const auto unit =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == text; });
  if (!number || unit == kUnits.end()) {
    return absl::InvalidArgumentError(Quoted(whole) +
                                      " is not a size: a number, then B, KiB, MiB, GiB or TiB");
  }
  if (*number > std::numeric_limits<uint64_t>::max() / unit->bytes) {
    return absl::InvalidArgumentError(Quoted(whole) + " is more than 64 bits hold");
  }
  return *number * unit->bytes;
}

}  // namespace kvstream
