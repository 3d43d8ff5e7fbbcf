// Command line options as a table: what each is called, what its value is, and what it sets.
// Unknown options are errors that name them. Both "--name VALUE" and "--name=VALUE" work; "--" ends
// options.
//
// Thread rule: one thread. Ownership: an option's target is the caller's and outlives the option.
// Errors: INVALID_ARGUMENT with the option's name and what it takes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstream {

struct Option {
  // With its dashes, such as "--socket".
  std::string name;
  // What stands for its value in the help, such as "PATH"; empty for a flag, which takes none.
  std::string value;
  std::string help;
  // Takes the value; empty for a flag.
  std::function<absl::Status(std::string_view)> set;
};

struct Range {
  uint64_t min = 0;
  uint64_t max = 0;
};

Option FlagOption(std::string name, std::string help, bool* target);
Option TextOption(std::string name, std::string value, std::string help, std::string* target);
// May be given several times.
Option ListOption(std::string name, std::string value, std::string help,
                  std::vector<std::string>* target);
// A decimal number within the range.
Option NumberOption(std::string name, std::string value, std::string help, Range range,
                    uint64_t* target);
// A size within the range, as ParseSize.
Option SizeOption(std::string name, std::string help, Range range, uint64_t* target);

enum class Positionals {
  // Anywhere among the options.
  kMixed,
  // The first one ends the options: it and all after it are returned.
  kStop,
};

// Sets what the arguments say and returns those that are no options.
absl::StatusOr<std::vector<std::string>> ParseOptions(const std::vector<std::string>& arguments,
                                                      const std::vector<Option>& options,
                                                      Positionals positionals);

// A line or more for each option, aligned.
std::string OptionsHelp(const std::vector<Option>& options);

// Bytes: a decimal number, alone or followed by B, KiB, MiB, GiB or TiB, such as "256KiB".
absl::StatusOr<uint64_t> ParseSize(std::string_view text);

}  // namespace kvstream
