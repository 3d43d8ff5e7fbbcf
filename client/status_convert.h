// The daemon's answers as absl::Status: the closed vocabulary of kvstream.v1 has the same words.
// Stateless; any thread.
#pragma once

#include <grpcpp/support/status.h>

#include <string_view>

#include "absl/status/status.h"
#include "kvstream/v1/types.pb.h"

namespace kvstream {

// "<operation>: <message>" under the same word. A code that this client does not know, which a
// newer daemon may send, is UNKNOWN.
absl::Status FromCode(v1::Code code, std::string_view operation, std::string_view message);
absl::Status FromGrpc(const grpc::Status& status, std::string_view operation);

// The way back. A code outside the vocabulary becomes UNAVAILABLE.
v1::Code ToCode(const absl::Status& status);

// "<operation> <object>: <strerror>". ENOENT is NOT_FOUND, EACCES and EPERM are PERMISSION_DENIED,
// EINVAL is INVALID_ARGUMENT, every other is UNAVAILABLE.
absl::Status FromErrno(int error, std::string_view operation, std::string_view object);

}  // namespace kvstream
