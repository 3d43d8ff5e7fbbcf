#include "server/tier/thread_queue.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "server/base/clock.h"

namespace kvstream::tier {
namespace {

using Kind = Operation::Kind;

// Flushing waits for the device like the data before it.
bool IsTransfer(Kind kind) {
  return kind == Kind::kRead || kind == Kind::kWrite || kind == Kind::kFsync;
}

int64_t Call(const Operation& o) {
  const auto offset = static_cast<off_t>(o.offset);
  switch (o.kind) {
    case Kind::kRead:
      return pread(o.fd, o.data, o.length, offset);
    case Kind::kWrite:
      return pwrite(o.fd, o.data, o.length, offset);
    case Kind::kFsync:
      return fsync(o.fd);
    case Kind::kOpen:
      return openat(o.fd, o.path, o.open_flags, IoQueue::kFileMode);
    case Kind::kClose:
      return close(o.fd);
    case Kind::kLink:
      return linkat(o.fd, o.path, o.fd, o.new_path, 0);
    case Kind::kUnlink:
      return unlinkat(o.fd, o.path, 0);
    case Kind::kMakeFolder:
      return mkdirat(o.fd, o.path, IoQueue::kFolderMode);
    case Kind::kStatx:
      return statx(o.fd, "", AT_EMPTY_PATH, STATX_SIZE, o.stat);
  }
  errno = EINVAL;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ThreadQueue>> ThreadQueue::Create(uint32_t threads,
                                                                 const std::string& thread_name) {
  std::unique_ptr<ThreadQueue> queue(new ThreadQueue(threads));
  for (uint32_t i = 0; i < threads; ++i) {
    try {
      queue->threads_.emplace_back(
          [q = queue.get(), name = thread_name.substr(0, 15)] { q->Work(name); });
    } catch (const std::system_error& e) {
      return absl::ResourceExhaustedError("start thread " + std::to_string(i + 1) + " of " +
                                          std::to_string(threads) + " of " + thread_name + ": " +
                                          e.what());
    }
  }
  return queue;
}

ThreadQueue::~ThreadQueue() {
  {
    MutexLock lock(&mu_);
    exit_ = true;
    work_changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool ThreadQueue::Queue(const Operation& operation, uint64_t user_data) {
  queued_.push_back({operation, user_data});
  return true;
}

bool ThreadQueue::QueueDelay(uint64_t user_data) {
  // All are equally long, so the oldest is due first.
  delays_.push_back({Now() + kRetryDelayNs, user_data});
  return true;
}

void ThreadQueue::Submit(bool wait) {
  const TimeNs due = delays_.empty() ? kNever : delays_.front().due;
  MutexLock lock(&mu_);
  for (const Job& job : queued_) {
    (IsTransfer(job.operation.kind) ? transfers_ : names_).push_back(job);
    work_changed_.NotifyOne();
  }
  queued_.clear();
  while (wait && !woken_ && done_.empty() && loop_changed_.WaitUntil(&mu_, due)) {
  }
  // The loop looks for work next.
  woken_ = false;
}

size_t ThreadQueue::Take(std::span<Event> events) {
  size_t taken = 0;
  while (taken < events.size() && !delays_.empty() && delays_.front().due <= Now()) {
    events[taken++] = {delays_.front().user_data, -ETIME};
    delays_.pop_front();
  }
  MutexLock lock(&mu_);
  while (taken < events.size() && !done_.empty()) {
    events[taken++] = done_.front();
    done_.pop_front();
  }
  return taken;
}

void ThreadQueue::Wake() {
  MutexLock lock(&mu_);
  woken_ = true;
  loop_changed_.NotifyOne();
}

bool ThreadQueue::TakeJob(Job* job) {
  const uint32_t names_max = transfers_.empty() ? name_jobs_ever_max_ : name_jobs_max_;
  const bool name_first = !names_.empty() && name_jobs_running_ < names_max;
  std::deque<Job>& from = name_first ? names_ : transfers_;
  if (from.empty()) return false;
  *job = from.front();
  from.pop_front();
  if (name_first) ++name_jobs_running_;
  return true;
}

void ThreadQueue::Work(const std::string& thread_name) {
  pthread_setname_np(pthread_self(), thread_name.c_str());
  Job job;
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!exit_ && !TakeJob(&job)) work_changed_.Wait(&mu_);
      if (exit_) return;
    }
    const int64_t answer = Call(job.operation);
    const auto result = static_cast<int32_t>(answer < 0 ? -errno : answer);
    MutexLock lock(&mu_);
    if (!IsTransfer(job.operation.kind)) --name_jobs_running_;
    done_.push_back({job.user_data, result});
    loop_changed_.NotifyOne();
  }
}

}  // namespace kvstream::tier
