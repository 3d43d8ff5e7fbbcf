#include "server/tier/outbox.h"

namespace kvstream::tier {

void Outbox::Accept(uint64_t requests) {
  MutexLock lock(&mu_);
  owed_ += requests;
}

void Outbox::Flush() {
  if (completions_.empty()) return;
  {
    MutexLock lock(&mu_);
    if (abandoned_) {
      completions_.clear();
      return;
    }
    delivering_ = true;
  }
  // Without the lock: the sink may ask the tier for more.
  sink_.OnCompletions(completions_);
  MutexLock lock(&mu_);
  delivering_ = false;
  owed_ -= completions_.size();
  completions_.clear();
  changed_.NotifyAll();
}

bool Outbox::WaitEmpty(TimeNs deadline) {
  MutexLock lock(&mu_);
  while (owed_ > 0) {
    if (!changed_.WaitUntil(&mu_, deadline)) return owed_ == 0;
  }
  return true;
}

void Outbox::Abandon() {
  MutexLock lock(&mu_);
  abandoned_ = true;
  while (delivering_) changed_.Wait(&mu_);
}

}  // namespace kvstream::tier
