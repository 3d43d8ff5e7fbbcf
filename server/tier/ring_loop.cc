#include "server/tier/ring_loop.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "server/base/check.h"
#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/tier/wait_until.h"

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

RingLoop::~RingLoop() { KV_CHECK(!thread_.joinable()); }

absl::Status RingLoop::Start(Options options) {
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return ErrnoStatus(errno, "make", "an eventfd");
  thread_name_ = std::move(options.thread_name);
  hook_ = std::move(options.hook);
  // The ring must be made by the thread that will use it.
  thread_ = std::thread(
      [this, memory = options.memory, entries = options.entries] { Run(memory, entries); });
  std::unique_lock lock(mu_);
  changed_.wait(lock, [this] { return set_up_; });
  if (set_up_status_.ok()) return absl::OkStatus();
  lock.unlock();
  thread_.join();
  return set_up_status_;
}

void RingLoop::Run(std::span<std::byte> memory, uint32_t entries) {
  pthread_setname_np(pthread_self(), thread_name_.c_str());
  const absl::Status status = SetUp(memory, entries);
  {
    std::lock_guard lock(mu_);
    set_up_ = true;
    set_up_status_ = status;
    changed_.notify_all();
  }
  if (status.ok()) Loop();
  ring_.reset();
  std::lock_guard lock(mu_);
  ended_ = true;
  changed_.notify_all();
}

absl::Status RingLoop::SetUp(std::span<std::byte> memory, uint32_t entries) {
  auto ring = Uring::Create(entries);
  if (!ring.ok()) return ring.status();
  ring_ = *std::move(ring);
  if (memory.empty()) return absl::OkStatus();
  const int error = ring_->RegisterBuffers(memory);
  registered_buffers_ = error == 0;
  if (error != 0) {
    spdlog::warn("memory not registered with io_uring, reads cost more CPU: thread={} errno={}",
                 thread_name_, error);
  }
  return absl::OkStatus();
}

void RingLoop::Loop() {
  WaitForWake();
  std::array<Uring::Event, 64> events;
  while (true) {
    // Asked before, so that Advance has seen all that its user was given before Join.
    const bool exit = exit_.load();
    user_.Advance();
    // The wait for the next wake is always in flight.
    if (exit && operations_.size() == 1) return;
    while (!unsent_.empty() && Queue(unsent_.front())) unsent_.pop_front();
    ring_->Submit(/*wait=*/unsent_.empty());
    while (const size_t n = ring_->Take(events)) {
      for (size_t i = 0; i < n; ++i) Handle(events[i]);
    }
  }
}

void RingLoop::WaitForWake() {
  Operation poll;
  poll.kind = Operation::Kind::kPoll;
  poll.fd = wake_.get();
  Submit(poll, [this](int32_t) {
    // Emptied before Advance looks for work, so that no wake is lost.
    uint64_t count = 0;
    (void)!read(wake_.get(), &count, sizeof count);
    WaitForWake();
  });
}

void RingLoop::Submit(const Operation& operation, Done done) {
  Send(operations_.Add(operation, std::move(done)));
}

void RingLoop::Send(uint64_t number) {
  if (!unsent_.empty() || !Queue(number)) unsent_.push_back(number);
}

bool RingLoop::Queue(uint64_t number) {
  const OperationTable::Entry* entry = operations_.Find(number);
  return entry->delayed ? ring_->QueueDelay(number) : ring_->Queue(entry->operation, number);
}

void RingLoop::Handle(const Uring::Event& event) {
  OperationTable::Entry* entry = operations_.Find(event.user_data);
  if (entry == nullptr) {
    stats_.unknown_completions.Add();
    return;
  }
  if (entry->delayed) {
    entry->delayed = false;
    Send(event.user_data);
    return;
  }
  const int32_t result = hook_ ? hook_(entry->operation, event.result) : event.result;
  if (GoesOn(entry, result)) {
    Send(event.user_data);
    return;
  }
  const auto moved = static_cast<int32_t>(entry->moved);
  const bool transfer = IsTransfer(entry->operation);
  Done done = operations_.Remove(event.user_data);
  done(transfer && result >= 0 ? moved : result);
}

bool RingLoop::GoesOn(OperationTable::Entry* entry, int32_t result) {
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

void RingLoop::Wake() {
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the loop is awake.
  (void)!write(wake_.get(), &one, sizeof one);
}

bool RingLoop::Join(TimeNs deadline) {
  if (!thread_.joinable()) return true;
  exit_.store(true);
  Wake();
  const TimeNs until = std::max(deadline, Now() + kEndGrace);
  {
    std::unique_lock lock(mu_);
    if (!WaitUntil(lock, changed_, until, [this] { return ended_; })) return false;
  }
  thread_.join();
  return true;
}

}  // namespace kvstream::tier
