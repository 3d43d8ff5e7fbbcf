#include "server/config/problems.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvstream::config {
namespace {

// absl's string_view is a type of its own here.
absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

}  // namespace

void Problems::Add(std::string_view field, std::string_view cause) {
  lines_.push_back(absl::StrCat(View(field), ": ", View(cause)));
}

absl::Status Problems::ToStatus() const {
  return absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
}

uint64_t Problems::InRange(std::string_view field, uint64_t value, Range range) {
  if (value < range.min || value > range.max) {
    Add(field, absl::StrCat(value, " is not in ", range.min, " .. ", range.max));
  }
  return value;
}

uint64_t Problems::PowerOfTwo(std::string_view field, uint64_t value, Range range) {
  if (!std::has_single_bit(value) || value < range.min || value > range.max) {
    Add(field, absl::StrCat(value, " is not a power of two in ", range.min, " .. ", range.max));
  }
  return value;
}

std::string Problems::AbsolutePath(std::string_view field, const std::string& value,
                                   size_t bytes_max) {
  if (value.empty()) {
    Add(field, "is required");
  } else if (value.find('\0') != std::string::npos) {
    Add(field, "contains a zero byte");
  } else if (value.front() != '/') {
    Add(field, absl::StrCat("'", value, "' is not an absolute path"));
  } else if (value.size() > bytes_max) {
    Add(field, absl::StrCat("'", value, "' is longer than ", bytes_max, " bytes"));
  }
  return value;
}

}  // namespace kvstream::config
