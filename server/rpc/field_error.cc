#include "server/rpc/field_error.h"

namespace kvstream::rpc {

absl::Status InvalidField(std::string_view field, std::string_view cause) {
  return absl::InvalidArgumentError(std::string(field).append(": ").append(cause));
}

absl::Status CheckRange(std::string_view field, uint64_t value, FieldRange range,
                        std::string_view unit) {
  if (value >= range.min && value <= range.max) return absl::OkStatus();
  return InvalidField(field, std::to_string(value)
                                 .append(unit)
                                 .append(", must be ")
                                 .append(std::to_string(range.min))
                                 .append(" .. ")
                                 .append(std::to_string(range.max)));
}

absl::Status InsideElement(std::string_view field, int index, const absl::Status& status) {
  return absl::Status(status.code(),
                      Element(field, index).append(".").append(std::string(status.message())));
}

std::string Element(std::string_view field, int index) {
  return std::string(field).append("[").append(std::to_string(index)).append("]");
}

}  // namespace kvstream::rpc
