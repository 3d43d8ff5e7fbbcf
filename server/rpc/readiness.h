// Whether the daemon serves, and why not or how degraded: set by the daemon, shown by GetStatus and
// by gRPC's health service. Once draining it is never ready again. Thread-safe.
#pragma once

#include <grpcpp/health_check_service_interface.h>

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

  // Where it is shown from now on; null when the server is gone.
  void ShowOn(grpc::HealthCheckServiceInterface* health) {
    absl::MutexLock lock(&mu_);
    health_ = health;
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

  State Get() const {
    absl::MutexLock lock(&mu_);
    return state_;
  }

 private:
  void SayDraining() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    state_.ready = false;
    state_.conditions.push_back("draining: new operations are refused");
  }
  void Show() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (health_ != nullptr) health_->SetServingStatus(state_.ready);
  }

  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  grpc::HealthCheckServiceInterface* health_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace kvstream::rpc
