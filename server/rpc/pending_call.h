// The answer that a unary call still owes, carried by the reply that the engine calls. When the
// engine drops the reply unanswered, because it stops, the call ends with UNAVAILABLE: neither the
// client nor the server's shutdown waits for ever.
//
// Thread rule: one thread at a time; any thread. Ownership: the reactor is gRPC's, and gone after
// Finish, as are the call's request and response.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "server/base/check.h"
#include "server/rpc/call_gate.h"
#include "server/rpc/status_convert.h"

namespace kvstream::rpc {

class PendingCall {
 public:
  explicit PendingCall(grpc::ServerUnaryReactor* reactor) : reactor_(reactor) {}
  PendingCall(PendingCall&& other) noexcept
      : reactor_(std::exchange(other.reactor_, nullptr)), room_(std::move(other.room_)) {}
  PendingCall& operator=(PendingCall&&) = delete;
  ~PendingCall() {
    if (reactor_ != nullptr) Finish(absl::UnavailableError("the daemon is stopping"));
  }

  // Takes its place among the calls that wait for the engine; RESOURCE_EXHAUSTED when all are
  // taken.
  absl::Status Enter(CallGate& gate, uint64_t keys) {
    auto room = gate.Enter(keys);
    if (!room.ok()) return room.status();
    room_.emplace(*std::move(room));
    return absl::OkStatus();
  }

  // REQUIRES: called at most once.
  void Finish(const absl::Status& status) {
    KV_CHECK(reactor_ != nullptr);
    room_.reset();  // Before the answer: the client may call again at once.
    std::exchange(reactor_, nullptr)->Finish(ToGrpcStatus(status));
  }

 private:
  grpc::ServerUnaryReactor* reactor_;
  std::optional<CallGate::Room> room_;
};

}  // namespace kvstream::rpc
