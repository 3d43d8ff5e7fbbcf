// Bounds the unary calls that wait for the engine, of all clients together: their number, and the
// keys of the lookups among them.
//
// Thread rule: thread-safe; the mutex is held for two comparisons. Ownership: the gate outlives its
// rooms. Errors: RESOURCE_EXHAUSTED, counted; nothing is kept then.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/facts.h"
#include "server/rpc/stats.h"

namespace kvstream::rpc {

class CallGate {
 public:
  // A call's place; gives it back when destroyed. Move-only.
  class Room {
   public:
    Room(CallGate* gate, uint64_t keys) : gate_(gate), keys_(keys) {}
    Room(Room&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), keys_(other.keys_) {}
    Room& operator=(Room&&) = delete;
    ~Room() {
      if (gate_ != nullptr) gate_->Leave(keys_);
    }

   private:
    CallGate* gate_;
    uint64_t keys_;
  };

  CallGate(const Limits& limits, RpcStats& stats) : limits_(limits), stats_(stats) {}

  absl::StatusOr<Room> Enter(uint64_t keys);

 private:
  void Leave(uint64_t keys);

  const Limits& limits_;
  RpcStats& stats_;
  absl::Mutex mu_;
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t keys_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvstream::rpc
