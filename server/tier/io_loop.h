// A thread with its I/O queue: what the lanes for reading and writing share. It retries what the
// kernel asks to retry and goes on where a transfer stopped short, so that its user sees each
// operation end once, for good.
//
// Thread rule: Submit from the loop's own thread (in User::Advance or a Done); the rest from any.
// Ownership: borrows its user and the stats, which must outlive the thread. An object whose Join
// failed must never be destroyed: its thread still runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/tier/io_queue.h"
#include "server/tier/operation_table.h"
#include "server/tier/tier.h"

namespace kvstream::tier {

// Puts something between a loop and its queue; called on the loop's thread, once. Only tests have
// one, for what a kernel may answer.
using QueueWrapper = std::function<std::unique_ptr<IoQueue>(std::unique_ptr<IoQueue>)>;

class IoLoop {
 public:
  using Done = OperationTable::Done;

  class User {
   public:
    virtual ~User() = default;
    // Called on the loop's thread after every wake and every batch of results.
    virtual void Advance() = 0;
  };

  struct Options {
    // At most 15 characters.
    std::string thread_name;
    // kUring or kThreads.
    IoEngine engine = IoEngine::kUring;
    // kUring: submissions at a time.
    uint32_t entries = 0;
    // kThreads: calls at a time.
    uint32_t threads = 0;
    // kUring: registered with the ring where the kernel allows it.
    std::span<std::byte> memory;
    QueueWrapper wrap;
  };

  // Most times that one operation is tried again after EAGAIN, EINTR or EBUSY.
  static constexpr uint32_t kRetriesMax = 16;
  static constexpr TimeNs kEndGrace = kSecond;

  IoLoop(User* user, TierStats* stats) : user_(*user), stats_(*stats) {}
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;
  // REQUIRES: Join has returned true, or Start failed or was never called.
  ~IoLoop();

  // Starts the thread and sets up its queue. Errors of Uring::Create and ThreadQueue::Create, and
  // RESOURCE_EXHAUSTED where no thread is to be had.
  absl::Status Start(Options options);
  bool registered_buffers() const { return registered_buffers_; }
  // Why the kernel did not register the memory; 0 where it did, or was not asked.
  int registration_error() const { return registration_error_; }

  void Submit(const Operation& operation, Done done);
  // Makes the loop call Advance.
  void Wake();
  // Ends the thread once no operation is in flight. False when that has not come by `deadline` or
  // within kEndGrace, whichever is later: closing what is idle takes a moment.
  [[nodiscard]] bool Join(TimeNs deadline);

 private:
  void Run(const Options& options);
  absl::Status SetUp(const Options& options);
  absl::Status SetUpThreads(const Options& options);
  absl::Status SetUpUring(const Options& options);
  void Loop();
  // Puts an operation, or its pause, into the queue or behind what waits for room in it.
  void Send(uint64_t number);
  bool Queue(uint64_t number);
  void Handle(const IoQueue::Event& event);
  // True if the operation goes on, because it is tried again or was short.
  bool GoesOn(OperationTable::Entry* entry, int32_t result);

  User& user_;
  TierStats& stats_;
  std::string thread_name_;
  bool registered_buffers_ = false;
  int registration_error_ = 0;
  std::atomic<bool> exit_{false};
  std::thread thread_;

  Mutex mu_;
  CondVar changed_;
  bool set_up_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status set_up_status_ ABSL_GUARDED_BY(mu_);

  // Made by the loop's thread and kept for as long as the loop, because any thread may wake it,
  // one that was left behind even after Join.
  std::unique_ptr<IoQueue> queue_;
  // Of the loop's thread.
  OperationTable operations_;
  std::deque<uint64_t> unsent_;
};

}  // namespace kvstream::tier
