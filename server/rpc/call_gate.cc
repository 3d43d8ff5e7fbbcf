#include "server/rpc/call_gate.h"

#include <string>

namespace kvstream::rpc {
namespace {

constexpr char kRefused[] = "a call was refused, too much waits for the engine";

}  // namespace

absl::StatusOr<CallGate::Room> CallGate::Enter(uint64_t keys) {
  absl::MutexLock lock(&mu_);
  if (calls_ >= limits_.calls_max) {
    CountAndWarnOnce(stats_.calls_refused, kRefused);
    return absl::ResourceExhaustedError("call: " + std::to_string(calls_) +
                                        " calls wait already, the limit of calls_max");
  }
  if (keys > limits_.lookup_keys_waiting_max - keys_) {
    CountAndWarnOnce(stats_.calls_refused, kRefused);
    return absl::ResourceExhaustedError(
        "prefix_hashes: " + std::to_string(keys) + " keys beside " + std::to_string(keys_) +
        " that wait already, the limit of lookup_keys_waiting_max is " +
        std::to_string(limits_.lookup_keys_waiting_max));
  }
  calls_ += 1;
  keys_ += keys;
  stats_.calls_waiting.Set(calls_);
  stats_.lookup_keys_waiting.Set(keys_);
  return Room(this, keys);
}

void CallGate::Leave(uint64_t keys) {
  absl::MutexLock lock(&mu_);
  calls_ -= 1;
  keys_ -= keys;
  stats_.calls_waiting.Set(calls_);
  stats_.lookup_keys_waiting.Set(keys_);
}

}  // namespace kvstream::rpc
