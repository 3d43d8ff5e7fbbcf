// A queue between a tier's loop and the kernel, of either I/O engine, on which operations go wrong
// as a plan says: where the engine hands over what it has completed, and for writes that lie, where
// it takes them. An operation that the loop tries again, or goes on with, is asked about again.
//
// Thread rule: IoQueue's; the plan is shared by both lanes of a tier.
// Ownership: borrows the plan, which outlives the tier's threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "server/tier/io_loop.h"
#include "server/tier/io_queue.h"
#include "tests/support/fault_plan.h"

namespace kvstream::test {

class FaultyQueue final : public tier::IoQueue {
 public:
  // Gets an operation and its result, and returns the result to believe. On the loops' threads.
  using Answer = std::function<int32_t(const tier::Operation& operation, int32_t result)>;

  // Either may be null.
  static tier::QueueWrapper Wrapper(FaultPlan* plan, Answer answer);

  FaultyQueue(std::unique_ptr<tier::IoQueue> inner, FaultPlan* plan, Answer answer)
      : inner_(std::move(inner)), plan_(plan), answer_(std::move(answer)) {}

  [[nodiscard]] bool Queue(const tier::Operation& operation, uint64_t user_data) override;
  [[nodiscard]] bool QueueDelay(uint64_t user_data) override;
  void Submit(bool wait) override;
  size_t Take(std::span<Event> events) override;
  void Wake() override { inner_->Wake(); }

 private:
  struct Running {
    tier::Operation operation;
    Fault fault;
    // What is written instead.
    std::shared_ptr<std::byte> lie;
  };
  struct Held {
    Event event;
    int64_t pauses = 0;  // To go.
  };
  // Beyond what a loop numbers its operations with.
  static constexpr uint64_t kHeld = uint64_t{1} << 63;

  Fault NextFault(const tier::Operation& operation);
  // The result to believe of an operation that has ended.
  int32_t Spoil(const Running& running, int32_t result);
  // True if the event is not for the loop, or not now.
  bool Withhold(const Event& event, Event* now);
  void Hold(uint64_t number);

  const std::unique_ptr<tier::IoQueue> inner_;
  FaultPlan* const plan_;
  const Answer answer_;
  std::map<uint64_t, Running> running_;
  std::map<uint64_t, Held> held_;
  std::deque<uint64_t> unqueued_pauses_;
  uint64_t last_held_ = kHeld;
};

}  // namespace kvstream::test
