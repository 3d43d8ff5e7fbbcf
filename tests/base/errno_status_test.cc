#include "server/base/errno_status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace kvstream {
namespace {

TEST(ErrnoStatusTest, EveryErrnoHasItsWord) {
  const struct {
    int error;
    absl::StatusCode code;
  } cases[] = {
      {ENOENT, absl::StatusCode::kNotFound},
      {ENOSPC, absl::StatusCode::kResourceExhausted},
      {EDQUOT, absl::StatusCode::kResourceExhausted},
      {EMFILE, absl::StatusCode::kResourceExhausted},
      {ENFILE, absl::StatusCode::kResourceExhausted},
      {ENOMEM, absl::StatusCode::kResourceExhausted},
      {EEXIST, absl::StatusCode::kAlreadyExists},
      {EACCES, absl::StatusCode::kPermissionDenied},
      {EPERM, absl::StatusCode::kPermissionDenied},
      {EROFS, absl::StatusCode::kPermissionDenied},
      {EINVAL, absl::StatusCode::kInvalidArgument},
      {EIO, absl::StatusCode::kUnavailable},
      {ESTALE, absl::StatusCode::kUnavailable},
      {ETIMEDOUT, absl::StatusCode::kUnavailable},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(ErrnoStatus(c.error, "read", "x").code(), c.code) << std::strerror(c.error);
  }
}

TEST(ErrnoStatusTest, MessageIsOperationObjectAndCause) {
  const absl::Status status = ErrnoStatus(EIO, "open", "tier nvme");
  EXPECT_EQ(std::string(status.message()), "open tier nvme: Input/output error");
}

}  // namespace
}  // namespace kvstream
