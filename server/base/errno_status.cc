#include "server/base/errno_status.h"

#include <cerrno>
#include <cstring>
#include <string>

namespace kvstream {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case EINVAL:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status ErrnoStatus(int error, std::string_view operation, std::string_view object) {
  std::string message(operation);
  message.append(" ").append(object).append(": ").append(std::strerror(error));
  return absl::Status(CodeOf(error), message);
}

}  // namespace kvstream
