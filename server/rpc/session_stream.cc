#include "server/rpc/session_stream.h"

#include <chrono>
#include <utility>

#include "server/base/clock.h"
#include "server/rpc/encode.h"
#include "server/rpc/field_error.h"
#include "server/rpc/status_convert.h"
#include "server/rpc/translate.h"

namespace kvstream::rpc {
namespace {

constexpr uint64_t kKeptMessageBytesMax = 256 * kKiB;
// A message is full from here on: below the 4 MiB that gRPC clients take by default.
constexpr uint64_t kMessageWeightMax = kMiB;

}  // namespace

grpc::ServerBidiReactor<v1::ClientMessage, v1::ServerMessage>* SessionStream::Start(
    StreamContext* context) {
  auto stream = std::make_shared<SessionStream>(context);
  stream->self_ = stream;
  context->stats.streams_open.Add();
  const uint64_t streams_max = 2 * context->facts.limits.sessions_max;
  if (context->open_streams.fetch_add(1) >= streams_max) {
    CountAndWarnOnce(context->stats.streams_refused,
                     "a session stream was refused, too many are open");
    {
      absl::MutexLock lock(&stream->mu_);
      stream->phase_ = Phase::kFinished;
    }
    stream->Finish(ToGrpcStatus(absl::ResourceExhaustedError(
        "open session stream: " + std::to_string(streams_max) + " are open already")));
    return stream.get();
  }
  // The timer lets go of the stream when it fires or is cancelled.
  stream->hello_timer_.Set(
      std::chrono::system_clock::now() + std::chrono::nanoseconds(context->facts.limits.hello_max),
      [self = stream](bool late) mutable {
        const std::shared_ptr<SessionStream> last = std::move(self);
        if (late) last->OnHelloLate();
      });
  stream->StartRead(&stream->incoming_);
  return stream.get();
}

void SessionStream::OnReadDone(bool ok) {
  Next next;
  bool read_on = false;
  absl::StatusOr<engine::SessionMessage> translated = engine::Heartbeat{};
  const uint64_t bytes = ok ? incoming_.ByteSizeLong() : 0;
  if (ok && IsOpen()) {
    // Not under the lock, which the engine loop takes too: a message can be long.
    translated = TranslateMessage(incoming_, {context_.facts.limits, context_.namespaces, Now()});
  }
  {
    absl::MutexLock lock(&mu_);
    // A message keeps its memory for the next one, which is worth it only for small ones.
    if (bytes > kKeptMessageBytesMax && phase_ == Phase::kOpen)
      v1::ClientMessage().Swap(&incoming_);
    if (ok) {
      read_on = TakeMessage(std::move(translated), bytes);
    } else {
      // The client half-closed; if it is gone altogether, OnCancel tells.
      Close(absl::OkStatus());
    }
    if (read_on) ++reads_starting_;
    next = Decide();
  }
  Do(next);
  if (read_on) ReadOn();
}

bool SessionStream::IsOpen() {
  absl::MutexLock lock(&mu_);
  return phase_ == Phase::kOpen;
}

void SessionStream::ReadOn() {
  StartRead(&incoming_);
  Next next;
  {
    absl::MutexLock lock(&mu_);
    --reads_starting_;
    next = Decide();
  }
  Do(next);
}

void SessionStream::TakeBack(uint64_t bytes) {
  {
    absl::MutexLock lock(&mu_);
    --unhandled_messages_;
    unhandled_bytes_ -= bytes;
    // What the context names may be gone once the stream is over.
    if (!held_ || phase_ != Phase::kOpen || !HasRoom()) return;
    held_ = false;
    ++reads_starting_;
  }
  ReadOn();
}

bool SessionStream::HasRoom() const {
  const Limits& limits = context_.facts.limits;
  return unhandled_messages_ < limits.unhandled_messages_max &&
         unhandled_bytes_ < limits.unhandled_bytes_max;
}

void SessionStream::OnHelloLate() {
  Next next;
  {
    absl::MutexLock lock(&mu_);
    if (phase_ != Phase::kHello) return;
    CountAndWarnOnce(context_.stats.hellos_missed,
                     "a stream has said no hello in time and was ended");
    Close(absl::DeadlineExceededError(
        "hello: not received within " +
        std::to_string(context_.facts.limits.hello_max / kMillisecond) + " ms"));
    next = Decide();
  }
  Do(next);
}

void SessionStream::OnWriteDone(bool ok) {
  Next next;
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    unread_bytes_ -= std::exchange(outgoing_bytes_, 0);
    if (!ok) {
      Close(absl::CancelledError("the client is gone"));
      DropQueue();
    }
    next = Decide();
  }
  Do(next);
}

void SessionStream::OnCancel() {
  Next next;
  {
    absl::MutexLock lock(&mu_);
    Close(absl::CancelledError("the stream was cancelled"));
    DropQueue();
    next = Decide();
  }
  Do(next);
}

void SessionStream::OnDone() {
  hello_timer_.Cancel();
  context_.stats.streams_open.Sub();
  context_.open_streams.fetch_sub(1);
  // The last use of *this unless the engine still holds the sink.
  std::shared_ptr<SessionStream> self = std::move(self_);
}

void SessionStream::Send(engine::SessionEvent event) {
  Next next = Next::kNothing;
  {
    absl::MutexLock lock(&mu_);
    if (!Queue(std::move(event))) next = Decide();
  }
  Do(next);
}

void SessionStream::Flush() {
  Next next;
  {
    absl::MutexLock lock(&mu_);
    flushed_ = queue_.size();
    next = Decide();
  }
  Do(next);
}

void SessionStream::End(absl::Status status) {
  Next next;
  {
    absl::MutexLock lock(&mu_);
    if (phase_ == Phase::kOpen) {
      phase_ = Phase::kClosing;
      end_ = std::move(status);
      flushed_ = queue_.size();
    }
    next = Decide();
  }
  Do(next);
}

bool SessionStream::TakeMessage(absl::StatusOr<engine::SessionMessage> translated, uint64_t bytes) {
  if (phase_ == Phase::kHello) {
    if (absl::Status s = TakeHello(); !s.ok()) {
      Close(std::move(s));
      return false;
    }
    return true;
  }
  // Closing: what still arrives is read no further, and means nothing.
  if (phase_ != Phase::kOpen) return false;
  if (!translated.ok()) {
    Close(translated.status());
    return false;
  }
  ++unhandled_messages_;
  unhandled_bytes_ += bytes;
  context_.poster.Post(engine::MessageArrived{session_, this, *std::move(translated),
                                              engine::Credit(shared_from_this(), bytes)});
  if (HasRoom()) return true;
  held_ = true;
  context_.stats.streams_held.Add();
  return false;
}

absl::Status SessionStream::TakeHello() {
  if (!incoming_.has_hello()) return InvalidField("hello", "the first message must be Hello");
  const v1::Hello& hello = incoming_.hello();
  if (auto s = CheckHello(hello); !s.ok()) return s;
  const auto session = context_.tokens.Resolve(hello.token());
  if (!session.has_value()) {
    return absl::FailedPreconditionError(
        "hello.token: no open handoff connection of this boot has it");
  }
  session_ = *session;
  phase_ = Phase::kOpen;
  context_.poster.Post(engine::StreamOpened{session_, hello.client_name(), shared_from_this()});
  return absl::OkStatus();
}

bool SessionStream::Queue(engine::SessionEvent event) {
  if (phase_ != Phase::kOpen) return true;
  unread_bytes_ += WeightOf(event);
  queue_.push_back(std::move(event));
  const uint64_t unread_max = context_.facts.limits.unread_events_bytes_max;
  if (unread_bytes_ <= unread_max) return true;
  CountAndWarnOnce(context_.stats.sessions_overrun,
                   "a session was ended, its client does not read its events");
  Close(absl::ResourceExhaustedError("send events: the client left more than " +
                                     std::to_string(unread_max) + " bytes of them unread"));
  DropQueue();
  return false;
}

void SessionStream::Close(absl::Status status) {
  if (phase_ == Phase::kClosing || phase_ == Phase::kFinished) return;
  if (phase_ == Phase::kOpen) context_.poster.Post(engine::StreamClosed{session_, this});
  phase_ = Phase::kClosing;
  end_ = std::move(status);
  flushed_ = queue_.size();
}

void SessionStream::DropQueue() {
  queue_.clear();
  flushed_ = 0;
  unread_bytes_ = outgoing_bytes_;
}

SessionStream::Next SessionStream::Decide() {
  if (phase_ == Phase::kFinished || writing_) return Next::kNothing;
  if (flushed_ > 0) {
    while (flushed_ > 0 && outgoing_bytes_ < kMessageWeightMax) {
      outgoing_bytes_ += WeightOf(queue_.front());
      outgoing_.push_back(std::move(queue_.front()));
      queue_.pop_front();
      --flushed_;
    }
    writing_ = true;
    return Next::kWrite;
  }
  if (phase_ != Phase::kClosing || reads_starting_ > 0) return Next::kNothing;
  phase_ = Phase::kFinished;
  return Next::kFinish;
}

void SessionStream::Do(Next next) {
  switch (next) {
    case Next::kNothing:
      return;
    case Next::kWrite:
      message_.Clear();
      message_.set_boot_id(RawBytes(context_.facts.boot_id));
      for (const engine::SessionEvent& event : outgoing_) {
        EncodeEvent(event, context_.facts, &message_);
      }
      outgoing_.clear();
      StartWrite(&message_);
      return;
    case Next::kFinish: {
      grpc::Status end;
      {
        absl::MutexLock lock(&mu_);
        end = ToGrpcStatus(end_);
      }
      Finish(std::move(end));
      return;
    }
  }
}

}  // namespace kvstream::rpc
