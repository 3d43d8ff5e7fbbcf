#include "server/rpc/scrub_streams.h"

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/rpc/encode.h"
#include "server/rpc/status_convert.h"

namespace kvstream::rpc {

// What lies between a stream and the engine's scrub, either of which may be gone first.
class ScrubStreams::Link {
 public:
  explicit Link(Stream* stream) : stream_(stream) {}

  void Send(const engine::ScrubProgress& progress);
  void End(const absl::Status& status);
  bool cancelled() const { return cancelled_; }

  void Cancel() { cancelled_ = true; }
  // The stream is gone.
  void Cut() {
    absl::MutexLock lock(&mu_);
    stream_ = nullptr;
  }

 private:
  std::atomic<bool> cancelled_{false};
  absl::Mutex mu_;  // Held while the stream is called, so that it is not gone meanwhile.
  Stream* stream_ ABSL_GUARDED_BY(mu_);
};

// The engine's end of a link. Dropped without a word of the end, it says so itself: the engine
// takes no more events.
class ScrubStreams::Sink final : public engine::ScrubSink {
 public:
  explicit Sink(std::shared_ptr<Link> link) : link_(std::move(link)) {}
  ~Sink() override { link_->End(absl::UnavailableError("the daemon is stopping")); }

  void Send(const engine::ScrubProgress& progress) override { link_->Send(progress); }
  void End(absl::Status status) override { link_->End(status); }
  bool cancelled() const override { return link_->cancelled(); }

 private:
  const std::shared_ptr<Link> link_;
};

class ScrubStreams::Stream final : public grpc::ServerWriteReactor<v1::ScrubProgress> {
 public:
  explicit Stream(ScrubStreams* streams) : streams_(streams), link_(std::make_shared<Link>(this)) {}

  void Begin(const Request& request) {
    {
      absl::MutexLock lock(&mu_);
      at_best_ = request.at_best;
    }
    streams_->poster_.Post(
        engine::BeginScrub{request.tiers, request.bytes_per_second, std::make_shared<Sink>(link_)});
  }

  void Send(const engine::ScrubProgress& progress) {
    Next next;
    {
      absl::MutexLock lock(&mu_);
      if (end_.has_value()) return;
      unsent_[progress.tier.value] = progress;
      next = Decide();
    }
    Do(next);
  }

  void End(const absl::Status& status) {
    Next next;
    {
      absl::MutexLock lock(&mu_);
      if (!end_.has_value()) end_ = status;
      next = Decide();
    }
    Do(next);
  }

  // Ends it from this side, and so the scrub.
  void GiveUp(const absl::Status& status) {
    link_->Cancel();
    End(status);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) Drop();
    Next next;
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      next = Decide();
    }
    Do(next);
  }

  void OnCancel() override {
    Drop();
    GiveUp(absl::CancelledError("cancelled"));
  }

  void OnDone() override {
    link_->Cut();
    streams_->Forget(this);
    delete this;
  }

 private:
  enum class Next : uint8_t { kNothing, kWrite, kFinish };

  // Nobody reads any more.
  void Drop() {
    link_->Cancel();
    absl::MutexLock lock(&mu_);
    unsent_ = {};
    if (!end_.has_value()) end_ = absl::CancelledError("the client is gone");
  }

  // One thing at a time is under way.
  Next Decide() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return Next::kNothing;
    for (std::optional<engine::ScrubProgress>& progress : unsent_) {
      if (!progress.has_value()) continue;
      Encode(*progress);
      progress.reset();
      writing_ = true;
      return Next::kWrite;
    }
    if (!end_.has_value()) return Next::kNothing;
    finished_ = true;
    finish_with_ = ToGrpcStatus(end_->ok() ? at_best_ : *end_);
    return Next::kFinish;
  }

  // May be the last use of this.
  void Do(Next next) {
    if (next == Next::kWrite) StartWrite(&message_);
    if (next == Next::kFinish) Finish(finish_with_);
  }

  void Encode(const engine::ScrubProgress& progress) {
    message_.set_boot_id(RawBytes(streams_->facts_.boot_id));
    message_.set_tier(streams_->facts_.tier_names[progress.tier.value]);
    message_.set_files(progress.files);
    message_.set_bytes(progress.bytes);
    message_.set_damaged(progress.damaged);
    message_.set_repaired(progress.repaired);
    message_.set_deleted(progress.deleted);
    message_.set_done(progress.done);
    message_.set_unreadable(progress.unreadable);
    message_.set_foreign(progress.foreign);
  }

  ScrubStreams* const streams_;
  const std::shared_ptr<Link> link_;
  v1::ScrubProgress message_;  // Unchanged while a write of it is under way.
  grpc::Status finish_with_;   // Of who decided to finish.
  absl::Mutex mu_;             // gRPC cancels on a thread of its own.
  std::array<std::optional<engine::ScrubProgress>, kTiersMax> unsent_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  absl::Status at_best_ ABSL_GUARDED_BY(mu_);  // In the place of an end that is OK.
};

void ScrubStreams::Link::Send(const engine::ScrubProgress& progress) {
  absl::MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->Send(progress);
}

void ScrubStreams::Link::End(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->End(status);
}

grpc::ServerWriteReactor<v1::ScrubProgress>* ScrubStreams::Begin(
    const absl::StatusOr<Request>& request) {
  auto* stream = new Stream(this);
  absl::Status status = request.status();
  if (status.ok()) status = Add(stream);
  if (status.ok()) {
    stream->Begin(*request);
  } else {
    stream->End(status);
  }
  return stream;
}

absl::Status ScrubStreams::Add(Stream* stream) {
  absl::MutexLock lock(&mu_);
  if (ended_) return absl::UnavailableError("the daemon is stopping");
  if (streams_.size() >= kStreamsMax) {
    return absl::ResourceExhaustedError("" + std::to_string(kStreamsMax) +
                                        " clients ask for one already");
  }
  streams_.insert(stream);
  return absl::OkStatus();
}

void ScrubStreams::Forget(Stream* stream) {
  absl::MutexLock lock(&mu_);
  streams_.erase(stream);
}

void ScrubStreams::EndAll() {
  absl::MutexLock lock(&mu_);
  ended_ = true;
  for (Stream* stream : streams_) {
    stream->GiveUp(absl::UnavailableError("the daemon is stopping"));
  }
}

}  // namespace kvstream::rpc
