#include "server/engine/copy_pool.h"

#include <pthread.h>

#include <cstring>
#include <utility>

#include "server/store/chunk_format.h"

namespace kvstream::engine {

CopyPool::CopyPool(uint32_t threads, absl::AnyInvocable<void(const CopyResult&)> sink)
    : sink_(std::move(sink)) {
  try {
    for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  } catch (...) {
    Stop();  // Those that there are.
    throw;
  }
}

void CopyPool::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void CopyPool::Submit(CopyJob job) {
  MutexLock lock(&mu_);
  (job.kind == CopyKind::kStore ? stores_ : reads_).push_back(std::move(job));
  changed_.NotifyOne();
}

std::optional<CopyJob> CopyPool::Take() {
  MutexLock lock(&mu_);
  return TakeLocked();
}

std::optional<CopyJob> CopyPool::TakeLocked() {
  if (reads_.empty() && stores_.empty()) return std::nullopt;
  const bool read = !reads_.empty() && (stores_.empty() || reads_in_a_row_ < kReadsInARow);
  reads_in_a_row_ = read ? reads_in_a_row_ + 1 : 0;
  auto& queue = read ? reads_ : stores_;
  CopyJob job = std::move(queue.front());
  queue.pop_front();
  return job;
}

void CopyPool::Do(const CopyJob& job) {
  const uint64_t checksum =
      store::CopyAndChecksum(job.key, job.segment, job.source, job.destinations);
  if (job.pad_bytes > 0) {
    for (std::byte* destination : job.destinations) {
      std::memset(destination + job.source.size(), 0, job.pad_bytes);
    }
  }
  sink_(CopyResult{job.kind, job.id, job.part, checksum});
}

void CopyPool::Run() {
  pthread_setname_np(pthread_self(), "copy");
  for (;;) {
    std::optional<CopyJob> job;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && reads_.empty() && stores_.empty()) changed_.Wait(&mu_);
      job = TakeLocked();
    }
    if (!job) return;
    Do(*job);
  }
}

}  // namespace kvstream::engine
