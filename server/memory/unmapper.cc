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
  MutexLock lock(&mu_);
  KV_CHECK(!stopping_);
  jobs_.push_back({std::move(memory), std::move(done)});
  changed_.NotifyOne();
}

void Unmapper::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyOne();
  }
  thread_.join();
}

void Unmapper::Run() {
  while (true) {
    Job job;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && jobs_.empty()) changed_.Wait(&mu_);
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
