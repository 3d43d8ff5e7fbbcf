// The answer that a unary call still owes, carried by the reply that the engine calls. When the
// engine drops the reply unanswered, because it stops, the call ends with UNAVAILABLE: neither the
// client nor the server's shutdown waits for ever.
//
// Thread rule: one thread at a time; any thread. Ownership: the reactor is gRPC's, and gone after
// Finish, as are the call's request and response.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/status/status.h"
#include "server/base/check.h"
#include "server/rpc/status_convert.h"

namespace kvstream::rpc {

class PendingCall {
 public:
  explicit PendingCall(grpc::ServerUnaryReactor* reactor) : reactor_(reactor) {}
  PendingCall(PendingCall&& other) noexcept : reactor_(std::exchange(other.reactor_, nullptr)) {}
  PendingCall& operator=(PendingCall&&) = delete;
  ~PendingCall() {
    if (reactor_ != nullptr) Finish(absl::UnavailableError("the daemon is stopping"));
  }

  // REQUIRES: called at most once.
  void Finish(const absl::Status& status) {
    KV_CHECK(reactor_ != nullptr);
    std::exchange(reactor_, nullptr)->Finish(ToGrpcStatus(status));
  }

 private:
  grpc::ServerUnaryReactor* reactor_;
};

}  // namespace kvstream::rpc
