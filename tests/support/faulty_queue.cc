#include "tests/support/faulty_queue.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "server/base/check.h"
#include "server/tier/tier.h"

namespace kvstream::test {

using tier::Operation;

namespace {

using Kind = Operation::Kind;

// A copy with another byte at `at`.
std::shared_ptr<std::byte> LieAbout(const Operation& write, uint64_t at) {
  std::shared_ptr<std::byte> lie(
      static_cast<std::byte*>(std::aligned_alloc(tier::kBlockBytes, write.length)), std::free);
  KV_CHECK(lie != nullptr);
  std::memcpy(lie.get(), write.data, write.length);
  lie.get()[at % write.length] ^= std::byte{0xff};
  return lie;
}

}  // namespace

tier::QueueWrapper FaultyQueue::Wrapper(FaultPlan* plan, Answer answer) {
  return [plan, answer = std::move(answer)](std::unique_ptr<tier::IoQueue> inner) {
    return std::make_unique<FaultyQueue>(std::move(inner), plan, answer);
  };
}

Fault FaultyQueue::NextFault(const Operation& operation) {
  if (plan_ == nullptr) return {};
  switch (operation.kind) {
    case Kind::kRead:
      return plan_->Next(FaultPoint::kRead, operation.length);
    case Kind::kWrite:
      return plan_->Next(FaultPoint::kWrite, operation.length);
    default:
      return plan_->Next(FaultPoint::kName, 0);
  }
}

bool FaultyQueue::Queue(const Operation& operation, uint64_t user_data) {
  Running running{operation, {}, nullptr};
  running.fault = NextFault(operation);
  Operation ours = operation;
  if (operation.kind == Kind::kWrite && running.fault.kind == Fault::Kind::kCorrupt) {
    running.lie = LieAbout(operation, running.fault.at);
    ours.data = running.lie.get();
  }
  // The queues of tests are never full, so a fault is never drawn twice for one operation.
  KV_CHECK(inner_->Queue(ours, user_data));
  running_[user_data] = std::move(running);
  return true;
}

bool FaultyQueue::QueueDelay(uint64_t user_data) { return inner_->QueueDelay(user_data); }

void FaultyQueue::Hold(uint64_t number) {
  if (!inner_->QueueDelay(number)) unqueued_pauses_.push_back(number);
}

void FaultyQueue::Submit(bool wait) {
  while (!unqueued_pauses_.empty() && inner_->QueueDelay(unqueued_pauses_.front())) {
    unqueued_pauses_.pop_front();
  }
  inner_->Submit(wait && unqueued_pauses_.empty());
}

size_t FaultyQueue::Take(std::span<Event> events) {
  std::array<Event, 16> taken;
  while (const size_t n =
             inner_->Take(std::span(taken).first(std::min(taken.size(), events.size())))) {
    size_t given = 0;
    for (size_t i = 0; i < n; ++i) {
      Event now;
      if (!Withhold(taken[i], &now)) events[given++] = now;
    }
    if (given > 0) return given;
  }
  return 0;
}

bool FaultyQueue::Withhold(const Event& event, Event* now) {
  *now = event;
  if (const auto held = held_.find(event.user_data); held != held_.end()) {
    held->second.pauses -= 1;
    if (held->second.pauses > 0) {
      Hold(event.user_data);
      return true;
    }
    *now = held->second.event;
    held_.erase(held);
    return false;
  }
  const auto it = running_.find(event.user_data);
  if (it == running_.end()) return false;  // The end of a pause of the loop's.
  const Running running = std::move(it->second);
  running_.erase(it);
  now->result = Spoil(running, event.result);
  if (running.fault.kind == Fault::Kind::kNever) return true;
  if (running.fault.kind != Fault::Kind::kDelay) return false;
  const uint64_t number = ++last_held_;
  held_[number] = {*now, running.fault.delay / kRetryDelayNs + 1};
  Hold(number);
  return true;
}

int32_t FaultyQueue::Spoil(const Running& running, int32_t result) {
  const Operation& operation = running.operation;
  const Fault& fault = running.fault;
  const bool transfer = operation.kind == Kind::kRead || operation.kind == Kind::kWrite;
  if (fault.kind == Fault::Kind::kErrno) {
    if (operation.kind == Kind::kOpen && result >= 0) close(result);
    result = -fault.error;
  } else if (transfer && result > 0 && fault.kind == Fault::Kind::kShort) {
    const auto most = static_cast<int32_t>(std::min<uint64_t>(fault.at, operation.length));
    // Nobody may use what was not read.
    if (operation.kind == Kind::kRead && result > most) {
      std::memset(operation.data + most, 0xDB, static_cast<size_t>(result - most));
    }
    result = std::min(result, most);
  } else if (operation.kind == Kind::kRead && result > 0 && fault.kind == Fault::Kind::kCorrupt) {
    operation.data[fault.at % static_cast<uint64_t>(result)] ^= std::byte{0xff};
  }
  return answer_ ? answer_(operation, result) : result;
}

}  // namespace kvstream::test
