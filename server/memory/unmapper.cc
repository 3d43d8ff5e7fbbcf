#include "server/memory/unmapper.h"

#include <cstdint>
#include <utility>

#include "server/base/check.h"

namespace kvstream::memory {

Unmapper::Unmapper(Gauge* waiting_bytes) : waiting_bytes_(waiting_bytes) {
  thread_ = std::thread([this] { Run(); });
}

void Unmapper::Give(std::unique_ptr<SealedMemory> memory, absl::AnyInvocable<void()> done) {
  waiting_bytes_->Add(memory->size());
  absl::MutexLock lock(&mu_);
  KV_CHECK(!stopping_);
  jobs_.push_back({std::move(memory), std::move(done)});
}

void Unmapper::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void Unmapper::Run() {
  const auto ready = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !jobs_.empty(); };
  while (true) {
    Job job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&ready));
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const uint64_t bytes = job.memory->size();
    job.memory.reset();
    waiting_bytes_->Sub(bytes);
    if (job.done) job.done();
  }
}

}  // namespace kvstream::memory
