#include "client/session_stream.h"

#include <string>
#include <utility>

#include "client/status_convert.h"

namespace kvstream {

SessionStream::SessionStream(v1::KvCache::Stub* stub, v1::Hello hello, Callbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  v1::ClientMessage first;
  *first.mutable_hello() = std::move(hello);
  stub->async()->Session(&context_, this);
  // Writes begin outside gRPC's reactions, so a hold keeps the call from ending between them.
  AddHold();
  StartRead(&incoming_);
  StartCall();
  // The queue is empty and the stream open: there is room.
  (void)Send(std::move(first));
}

SessionStream::~SessionStream() {
  context_.TryCancel();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&done_));
}

absl::Status SessionStream::Send(v1::ClientMessage message) {
  Next next;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return absl::UnavailableError("send on session stream: the stream has ended");
    if (queue_.size() >= kQueuedMessagesMax) {
      return absl::ResourceExhaustedError(
          "send on session stream: " + std::to_string(kQueuedMessagesMax) +
          " messages wait already");
    }
    queue_.push_back(std::move(message));
    next = Decide();
  }
  Do(next);
  return absl::OkStatus();
}

SessionStream::Next SessionStream::Decide() {
  if (writing_) return Next::kNothing;
  if (closed_) return std::exchange(holding_, false) ? Next::kRemoveHold : Next::kNothing;
  if (queue_.empty()) return Next::kNothing;
  writing_ = true;
  return Next::kWrite;
}

void SessionStream::Do(Next next) {
  switch (next) {
    case Next::kNothing:
      return;
    case Next::kRemoveHold:
      return RemoveHold();
    case Next::kWrite:
      break;
  }
  const v1::ClientMessage* front;
  {
    absl::MutexLock lock(&mu_);
    front = &queue_.front();
  }
  StartWrite(front);
}

void SessionStream::OnReadDone(bool ok) {
  if (ok) {
    callbacks_.on_message(incoming_);
    StartRead(&incoming_);
    return;
  }
  Next next;
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    next = Decide();
  }
  Do(next);
}

void SessionStream::OnWriteDone(bool) {
  // A failed write needs nothing here: the stream is broken, and its read fails as well.
  Next next;
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    queue_.pop_front();
    next = Decide();
  }
  Do(next);
}

void SessionStream::OnDone(const grpc::Status& status) {
  callbacks_.on_end(status.ok()
                        ? absl::UnavailableError("use session stream: the daemon ended the stream")
                        : FromGrpc(status, "use session stream"));
  absl::MutexLock lock(&mu_);
  done_ = true;
}

}  // namespace kvstream
