// Why something is as a number says it is, in words: kept by whoever keeps the number, for the
// status to tell.
//
// Thread rule: any thread.
#pragma once

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"

namespace kvstream {

class Cause {
 public:
  // Empty: none, any more.
  void Set(std::string text) {
    const MutexLock lock(&mu_);
    text_ = std::move(text);
  }
  std::string Get() const {
    const MutexLock lock(&mu_);
    return text_;
  }

 private:
  mutable Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream
