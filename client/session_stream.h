// The client's end of the session stream: sends messages in order, one write in flight, and hands
// on what the daemon says.
//
// Thread rule: Send and Cancel from any thread. `on_message` and then, once and last, `on_end` run
// on gRPC's threads, one at a time, and must not block or destroy the stream.
// Ownership: owns the call; not the stub, which outlives it.
// Errors: a message after the stream's end is UNAVAILABLE, and one too many RESOURCE_EXHAUSTED.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <cstddef>
#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kvstream/v1/kvstream.grpc.pb.h"

namespace kvstream {

class SessionStream final : public grpc::ClientBidiReactor<v1::ClientMessage, v1::ServerMessage> {
 public:
  // Messages that wait for the wire. More means that the daemon has stopped reading.
  static constexpr size_t kQueuedMessagesMax = 4096;

  struct Callbacks {
    std::function<void(const v1::ServerMessage&)> on_message;
    // Never OK: a stream that the daemon ended in peace is UNAVAILABLE too.
    std::function<void(const absl::Status&)> on_end;
  };

  // Opens the stream with `hello`.
  SessionStream(v1::KvCache::Stub* stub, v1::Hello hello, Callbacks callbacks);
  SessionStream(const SessionStream&) = delete;
  SessionStream& operator=(const SessionStream&) = delete;
  // Cancels, and waits until on_end has returned.
  ~SessionStream() override;

  absl::Status Send(v1::ClientMessage message) ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What is to be started, outside the lock since gRPC may call back from within.
  enum class Next { kNothing, kWrite, kRemoveHold };
  Next Decide() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(Next next);

  const Callbacks callbacks_;
  grpc::ClientContext context_;
  // The reading thread's.
  v1::ServerMessage incoming_;

  absl::Mutex mu_;
  // The front one is being written while writing_.
  std::deque<v1::ClientMessage> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  // No read will come any more: the stream is ending.
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool holding_ ABSL_GUARDED_BY(mu_) = true;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvstream
