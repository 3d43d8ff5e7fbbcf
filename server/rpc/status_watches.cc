#include "server/rpc/status_watches.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "server/base/clock.h"
#include "server/rpc/status_convert.h"

namespace kvstream::rpc {
// Until it finishes, either a write or an alarm is under way, and what ends that decides how to go
// on: so an end from outside only leaves word.
class StatusWatches::Watch final : public grpc::ServerWriteReactor<v1::Status> {
 public:
  Watch(StatusWatches* watches, TimeNs interval) : watches_(watches), interval_(interval) {}

  void Begin() { Write(); }
  void Refuse(const absl::Status& cause) { Finish(ToGrpcStatus(cause)); }

  void End(const absl::Status& cause) {
    absl::MutexLock lock(&mu_);
    if (!end_.ok()) return;
    end_ = cause;
    if (alarm_.has_value()) alarm_->Cancel();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) End(absl::CancelledError("watch: the client is gone"));
    if (FinishIfEnded()) return;
    const TimeNs wait = std::max<TimeNs>(0, written_at_ + interval_ - Now());
    absl::MutexLock lock(&mu_);
    // A fresh one each time: the last one's callback may not have returned yet.
    alarm_.emplace();
    alarm_->Set(std::chrono::system_clock::now() + std::chrono::nanoseconds(wait),
                [this](bool) { OnAlarm(); });
    if (!end_.ok()) alarm_->Cancel();  // It came in between.
  }

  void OnCancel() override { End(absl::CancelledError("watch: cancelled")); }

  void OnDone() override {
    watches_->Forget(this);
    delete this;
  }

 private:
  void OnAlarm() {
    if (!FinishIfEnded()) Write();
  }

  // True: this may be gone already.
  bool FinishIfEnded() {
    absl::Status end;
    {
      absl::MutexLock lock(&mu_);
      end = end_;
    }
    if (!end.ok()) Finish(ToGrpcStatus(end));
    return !end.ok();
  }

  void Write() {
    written_at_ = Now();
    status_.Clear();
    watches_->report_.Fill(&status_);
    StartWrite(&status_);
  }

  StatusWatches* const watches_;
  const TimeNs interval_;
  v1::Status status_;  // Unchanged while a write of it is under way.
  TimeNs written_at_ = 0;
  absl::Mutex mu_;  // gRPC cancels on a thread of its own.
  absl::Status end_ ABSL_GUARDED_BY(mu_);
  std::optional<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mu_);
};

grpc::ServerWriteReactor<v1::Status>* StatusWatches::Begin(const absl::StatusOr<TimeNs>& interval) {
  auto* watch = new Watch(this, interval.value_or(0));
  absl::Status status = interval.status();
  if (status.ok()) status = Add(watch);
  if (status.ok()) {
    watch->Begin();
  } else {
    watch->Refuse(status);
  }
  return watch;
}

absl::Status StatusWatches::Add(Watch* watch) {
  absl::MutexLock lock(&mu_);
  if (ended_) return absl::UnavailableError("watch: the daemon is stopping");
  if (watches_.size() >= kWatchesMax) {
    return absl::ResourceExhaustedError("watch: " + std::to_string(kWatchesMax) +
                                        " clients watch already");
  }
  watches_.insert(watch);
  return absl::OkStatus();
}

void StatusWatches::Forget(Watch* watch) {
  absl::MutexLock lock(&mu_);
  watches_.erase(watch);
}

void StatusWatches::EndAll() {
  absl::MutexLock lock(&mu_);
  ended_ = true;
  for (Watch* watch : watches_) watch->End(absl::UnavailableError("watch: the daemon is stopping"));
}

}  // namespace kvstream::rpc
