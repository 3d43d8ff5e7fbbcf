// A worker's session stream: the reactor between gRPC's callbacks and the engine.
//
// Inwards it reads one message at a time, validates it and posts it. Outwards it queues the
// engine's events and sends all that were flushed in one message, one write at a time. What the
// client leaves unread is bounded: past the bound the session ends. What the engine has not handled
// is bounded too: past that bound the stream is read no further until the engine has caught up, and
// gRPC's flow control holds the client back. A stream that says no Hello in time ends.
//
// The rules of gRPC's callback API that the state below exists for:
//   - one write is in flight at most, and Finish never meets a write in flight;
//   - after Finish nothing is started: a read that is being started holds Finish back too, also
//     one that a credit starts, on whichever thread returned it;
//   - every stream calls Finish in the end, also when the server shuts down, or the shutdown
//     hangs: after OnCancel it does so at once, or when the write in flight has failed;
//   - the stream keeps itself alive until OnDone; the engine keeps it alive as a sink, and each
//     credit and the timer as what they call.
//
//   kHello ──Hello──▶ kOpen ──half-close, error, End, overflow──▶ kClosing ──Finish──▶ kFinished
//      └───────────────────────refused, cancelled──────────────────▲
//
// Thread rule: gRPC's threads call the reactions and the timer, the engine loop the sink and the
// credits; `mu_` guards all state.
// gRPC is never called with `mu_` held, because it may run a reaction inside the call. Events are
// posted with `mu_` held, so that StreamClosed is the last that the engine hears of a stream.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kvstream/v1/kvstream.pb.h"
#include "server/engine/events.h"
#include "server/rpc/facts.h"
#include "server/rpc/session_tokens.h"
#include "server/rpc/stats.h"
#include "server/store/namespace.h"

namespace kvstream::rpc {

// What all streams share. The parts are not owned and outlive the gRPC server.
struct StreamContext {
  const Facts& facts;
  SessionTokens& tokens;
  const store::NamespaceRegistry& namespaces;
  engine::EventPoster& poster;
  RpcStats& stats;
  // Streams that have not seen OnDone.
  std::atomic<uint64_t> open_streams{0};
};

class SessionStream final : public grpc::ServerBidiReactor<v1::ClientMessage, v1::ServerMessage>,
                            public engine::SessionSink,
                            public engine::Credit::Source,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  // Begins to read, or refuses with RESOURCE_EXHAUSTED when too many streams are open: a stream
  // outlives its session while its client reads nothing, so sessions_max alone bounds no memory.
  // The result is gRPC's until OnDone.
  static grpc::ServerBidiReactor<v1::ClientMessage, v1::ServerMessage>* Start(
      StreamContext* context);

  explicit SessionStream(StreamContext* context) : context_(*context) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Send(engine::SessionEvent event) override;
  void Flush() override;
  void End(absl::Status status) override;

  void TakeBack(uint64_t bytes) override;

 private:
  enum class Phase { kHello, kOpen, kClosing, kFinished };
  // What to ask of gRPC once the lock is gone.
  enum class Next { kNothing, kWrite, kFinish };

  void OnHelloLate();
  bool IsOpen() ABSL_LOCKS_EXCLUDED(mu_);
  // Handles the message that was read: `translated` and its length once the stream is open. True
  // when the next one may be read.
  bool TakeMessage(absl::StatusOr<engine::SessionMessage> translated, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the engine has room for another message of this stream.
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts the read that `reads_starting_` counts already.
  void ReadOn() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeHello() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False when that was one event too many, and the stream is closing.
  bool Queue(engine::SessionEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins to close unless that has begun: what is queued still goes out, then `status` ends the
  // stream. Tells the engine if it knows of the stream.
  void Close(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Next Decide() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(Next next) ABSL_LOCKS_EXCLUDED(mu_);

  StreamContext& context_;
  // Set by Start, gone in OnDone.
  std::shared_ptr<SessionStream> self_;
  // From Start until it fires or OnDone; after Hello it means nothing.
  grpc::Alarm hello_timer_;

  // Belongs to the read in flight, then to OnReadDone.
  v1::ClientMessage incoming_;
  // Belong to whoever set `writing_`, until OnWriteDone.
  std::vector<engine::SessionEvent> outgoing_;
  v1::ServerMessage message_;

  absl::Mutex mu_;
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kHello;
  SessionId session_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  // StartRead calls that have not returned; two when a read ends before its StartRead returns.
  int reads_starting_ ABSL_GUARDED_BY(mu_) = 0;
  // Posted messages whose credit is out, and their bytes on the wire.
  uint64_t unhandled_messages_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unhandled_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // No read is in flight until a credit comes back.
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  // Events not yet in a message; the first `flushed_` of them may go out.
  std::deque<engine::SessionEvent> queue_ ABSL_GUARDED_BY(mu_);
  size_t flushed_ ABSL_GUARDED_BY(mu_) = 0;
  // Weight of the queue and of the message in flight.
  uint64_t unread_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t outgoing_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // How the stream ends, once it is closing.
  absl::Status end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::rpc
