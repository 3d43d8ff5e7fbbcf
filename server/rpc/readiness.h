// Whether the daemon serves, and why not or how degraded: set by the daemon, shown by GetStatus and
// by gRPC's health service. Once draining it is never ready again. Thread-safe.
#pragma once

#include <grpcpp/health_check_service_interface.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvstream::rpc {

class Readiness {
 public:
  struct State {
    bool ready = false;
    // A sentence each.
    std::vector<std::string> conditions;
  };
  // What keeps the daemon from being ready just now, whatever it has set: a sentence each. Any
  // thread calls it, and it neither blocks nor calls back.
  using Faults = std::function<std::vector<std::string>()>;

  explicit Readiness(Faults faults) : faults_(std::move(faults)) {}

  // Where it is shown from now on; null when the server is gone.
  void ShowOn(grpc::HealthCheckServiceInterface* health) {
    absl::MutexLock lock(&mu_);
    health_ = health;
    shown_.reset();
  }

  void Set(State state) {
    absl::MutexLock lock(&mu_);
    state_ = std::move(state);
    if (draining_) SayDraining();
    Show();
  }

  // Idempotent.
  void BeginDrain() {
    absl::MutexLock lock(&mu_);
    if (draining_) return;
    draining_ = true;
    SayDraining();
    Show();
  }

  // Shows faults that have come or gone since; GetStatus sees them without.
  void Refresh() {
    absl::MutexLock lock(&mu_);
    Show();
  }

  State Get() const {
    absl::MutexLock lock(&mu_);
    State state = state_;
    for (std::string& fault : faults_()) {
      state.ready = false;
      state.conditions.push_back(std::move(fault));
    }
    return state;
  }

 private:
  void SayDraining() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    state_.ready = false;
    state_.conditions.push_back("draining: new operations are refused");
  }
  void Show() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (health_ == nullptr) return;
    const bool ready = state_.ready && faults_().empty();
    // Whoever watches gets a message each time.
    if (shown_ != ready) health_->SetServingStatus(ready);
    shown_ = ready;
  }

  const Faults faults_;
  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  grpc::HealthCheckServiceInterface* health_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::optional<bool> shown_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::rpc
