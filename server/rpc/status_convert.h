// Statuses of the daemon in the words of the protocol's closed vocabulary. Stateless; any thread.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "kvstream/v1/types.pb.h"

namespace kvstream::rpc {

// A code outside the vocabulary has no business with a client, and becomes UNAVAILABLE.
v1::Code ToCode(absl::StatusCode code);

// The same word as a gRPC status, with the message.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace kvstream::rpc
