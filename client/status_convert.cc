#include "client/status_convert.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace kvstream {
namespace {

std::string Join(std::string_view operation, std::string_view cause) {
  std::string joined(operation);
  return joined.append(": ").append(cause.empty() ? "no cause given" : cause);
}

struct Word {
  v1::Code code;
  absl::StatusCode status;
};
constexpr std::array kWords = {
    Word{v1::OK, absl::StatusCode::kOk},
    Word{v1::NOT_FOUND, absl::StatusCode::kNotFound},
    Word{v1::DATA_LOSS, absl::StatusCode::kDataLoss},
    Word{v1::UNAVAILABLE, absl::StatusCode::kUnavailable},
    Word{v1::RESOURCE_EXHAUSTED, absl::StatusCode::kResourceExhausted},
    Word{v1::DEADLINE_EXCEEDED, absl::StatusCode::kDeadlineExceeded},
    Word{v1::CANCELLED, absl::StatusCode::kCancelled},
    Word{v1::FAILED_PRECONDITION, absl::StatusCode::kFailedPrecondition},
    Word{v1::INVALID_ARGUMENT, absl::StatusCode::kInvalidArgument},
    Word{v1::PERMISSION_DENIED, absl::StatusCode::kPermissionDenied},
    Word{v1::UNIMPLEMENTED, absl::StatusCode::kUnimplemented},
};

}  // namespace

absl::Status FromCode(v1::Code code, std::string_view operation, std::string_view message) {
  if (code == v1::OK) return absl::OkStatus();
  absl::StatusCode status = absl::StatusCode::kUnknown;
  for (const Word& word : kWords) {
    if (word.code == code) status = word.status;
  }
  return absl::Status(status, Join(operation, message));
}

v1::Code ToCode(const absl::Status& status) {
  for (const Word& word : kWords) {
    if (word.status == status.code()) return word.code;
  }
  return v1::UNAVAILABLE;
}

absl::Status FromGrpc(const grpc::Status& status, std::string_view operation) {
  if (status.ok()) return absl::OkStatus();
  // Both number the canonical codes alike.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      Join(operation, status.error_message()));
}

absl::Status FromErrno(int error, std::string_view operation, std::string_view object) {
  const std::string message =
      Join(std::string(operation).append(" ").append(object), std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case EINVAL:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace kvstream
