// Where a lane leaves its completions: they go to the sink in batches, and are counted, so that
// stopping knows when every accepted request has had its own.
//
// Thread rule: Accept from the caller's thread, Add and Flush from the lane's, the rest from any.
// Ownership: borrows the sink, and lets go of it in Abandon.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/tier/tier.h"

namespace kvstream::tier {

class Outbox {
 public:
  explicit Outbox(CompletionSink* sink) : sink_(*sink) {}

  // Counts requests that will each get a completion.
  void Accept(uint64_t requests);
  void Add(Completion completion) { completions_.push_back(std::move(completion)); }
  // Hands over what was added.
  void Flush();

  // True once every accepted request had its completion; false if not by `deadline`.
  [[nodiscard]] bool WaitEmpty(TimeNs deadline);
  // When it returns, the sink is not called and never will be again.
  void Abandon();

 private:
  CompletionSink& sink_;
  // Of the lane's thread.
  std::vector<Completion> completions_;

  Mutex mu_;
  CondVar changed_;
  uint64_t owed_ ABSL_GUARDED_BY(mu_) = 0;
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvstream::tier
