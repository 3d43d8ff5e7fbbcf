#include "server/tier/outbox.h"

#include "server/tier/wait_until.h"

namespace kvstream::tier {

void Outbox::Accept(uint64_t requests) {
  std::lock_guard lock(mu_);
  owed_ += requests;
}

void Outbox::Flush() {
  if (completions_.empty()) return;
  {
    std::lock_guard lock(mu_);
    if (abandoned_) {
      completions_.clear();
      return;
    }
    delivering_ = true;
  }
  // Without the lock: the sink may ask the tier for more.
  sink_.OnCompletions(completions_);
  std::lock_guard lock(mu_);
  delivering_ = false;
  owed_ -= completions_.size();
  completions_.clear();
  changed_.notify_all();
}

bool Outbox::WaitEmpty(TimeNs deadline) {
  std::unique_lock lock(mu_);
  return WaitUntil(lock, changed_, deadline, [this] { return owed_ == 0; });
}

void Outbox::Abandon() {
  std::unique_lock lock(mu_);
  abandoned_ = true;
  changed_.wait(lock, [this] { return !delivering_; });
}

}  // namespace kvstream::tier
