#include "server/tier/io_loop.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "server/base/check.h"
#include "server/base/clock.h"
#include "server/base/logging.h"
#include "server/tier/thread_queue.h"
#include "server/tier/uring.h"

namespace kvstream::tier {
namespace {

bool IsTransfer(const Operation& operation) {
  return operation.kind == Operation::Kind::kRead || operation.kind == Operation::Kind::kWrite;
}

bool MayRetry(const Operation& operation, int32_t result) {
  // A close has closed whatever it answers: a second one could hit somebody else's descriptor.
  if (operation.kind == Operation::Kind::kClose) return false;
  return result == -EAGAIN || result == -EINTR || result == -EBUSY;
}

}  // namespace

IoLoop::~IoLoop() { KV_CHECK(!thread_.joinable()); }

absl::Status IoLoop::Start(Options options) {
  thread_name_ = options.thread_name;
  // The queue must be made by the thread that will use it.
  try {
    thread_ = std::thread([this, options = std::move(options)] { Run(options); });
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError("start thread " + thread_name_ + ": " + e.what());
  }
  absl::Status status;
  {
    MutexLock lock(&mu_);
    while (!set_up_) changed_.Wait(&mu_);
    status = set_up_status_;
  }
  if (!status.ok()) thread_.join();
  return status;
}

void IoLoop::Run(const Options& options) {
  pthread_setname_np(pthread_self(), thread_name_.c_str());
  const absl::Status status = SetUp(options);
  {
    MutexLock lock(&mu_);
    set_up_ = true;
    set_up_status_ = status;
    changed_.NotifyAll();
  }
  if (status.ok()) Loop();
  MutexLock lock(&mu_);
  ended_ = true;
  changed_.NotifyAll();
}

absl::Status IoLoop::SetUp(const Options& options) {
  absl::Status status =
      options.engine == IoEngine::kUring ? SetUpUring(options) : SetUpThreads(options);
  if (status.ok() && options.wrap) queue_ = options.wrap(std::move(queue_));
  return status;
}

absl::Status IoLoop::SetUpThreads(const Options& options) {
  auto queue = ThreadQueue::Create(options.threads, thread_name_);
  if (!queue.ok()) return queue.status();
  queue_ = *std::move(queue);
  return absl::OkStatus();
}

absl::Status IoLoop::SetUpUring(const Options& options) {
  auto ring = Uring::Create(options.entries);
  if (!ring.ok()) return ring.status();
  if (!options.memory.empty()) {
    registration_error_ = (*ring)->RegisterBuffers(options.memory);
    registered_buffers_ = registration_error_ == 0;
  }
  queue_ = *std::move(ring);
  return absl::OkStatus();
}

void IoLoop::Loop() {
  std::array<IoQueue::Event, 64> events;
  while (true) {
    // Asked before, so that Advance has seen all that its user was given before Join.
    const bool exit = exit_.load();
    user_.Advance();
    if (exit && operations_.size() == 0) return;
    while (!unsent_.empty() && Queue(unsent_.front())) unsent_.pop_front();
    queue_->Submit(/*wait=*/unsent_.empty());
    while (const size_t n = queue_->Take(events)) {
      for (size_t i = 0; i < n; ++i) Handle(events[i]);
    }
  }
}

void IoLoop::Submit(const Operation& operation, Done done) {
  Send(operations_.Add(operation, std::move(done)));
}

void IoLoop::Send(uint64_t number) {
  if (!unsent_.empty() || !Queue(number)) unsent_.push_back(number);
}

bool IoLoop::Queue(uint64_t number) {
  const OperationTable::Entry* entry = operations_.Find(number);
  return entry->delayed ? queue_->QueueDelay(number) : queue_->Queue(entry->operation, number);
}

void IoLoop::Handle(const IoQueue::Event& event) {
  OperationTable::Entry* entry = operations_.Find(event.user_data);
  if (entry == nullptr) {
    if (stats_.unknown_completions.Add() == 0) {
      spdlog::error("a completion that nobody waits for, a bug: thread={} result={}", thread_name_,
                    event.result);
    }
    return;
  }
  if (entry->delayed) {
    entry->delayed = false;
    Send(event.user_data);
    return;
  }
  if (GoesOn(entry, event.result)) {
    Send(event.user_data);
    return;
  }
  const auto moved = static_cast<int32_t>(entry->moved);
  const bool transfer = IsTransfer(entry->operation);
  Done done = operations_.Remove(event.user_data);
  done(transfer && event.result >= 0 ? moved : event.result);
}

bool IoLoop::GoesOn(OperationTable::Entry* entry, int32_t result) {
  Operation& operation = entry->operation;
  if (MayRetry(operation, result)) {
    if (entry->retries == kRetriesMax) return false;
    ++entry->retries;
    stats_.retries.Add();
    entry->delayed = true;
    return true;
  }
  if (!IsTransfer(operation) || result <= 0) return false;
  auto moved = static_cast<uint32_t>(result);
  KV_CHECK(moved <= operation.length);
  const bool all = moved == operation.length;
  // Direct I/O can only go on at a whole block. Less than one more block is the end of the file.
  if (!all) moved -= moved % operation.granule;
  entry->moved += moved;
  operation.data += moved;
  operation.offset += moved;
  operation.length -= moved;
  if (all || moved == 0) return false;
  if (operation.kind == Operation::Kind::kRead) stats_.short_reads_resumed.Add();
  return true;
}

void IoLoop::Wake() { queue_->Wake(); }

bool IoLoop::Join(TimeNs deadline) {
  if (!thread_.joinable()) return true;
  exit_.store(true);
  Wake();
  const TimeNs until = std::max(deadline, Now() + kEndGrace);
  {
    MutexLock lock(&mu_);
    while (!ended_) {
      if (!changed_.WaitUntil(&mu_, until) && !ended_) return false;
    }
  }
  thread_.join();
  return true;
}

}  // namespace kvstream::tier
