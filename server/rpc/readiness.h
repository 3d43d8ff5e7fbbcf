// Whether the daemon serves, and why not or how degraded: set by the daemon, shown by GetStatus.
// Thread-safe.
#pragma once

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

  void Set(State state) {
    absl::MutexLock lock(&mu_);
    state_ = std::move(state);
  }

  State Get() const {
    absl::MutexLock lock(&mu_);
    return state_;
  }

 private:
  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::rpc
