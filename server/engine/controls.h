// The operator's controls: tiers taken out of service and brought back, and drains that wait for
// their end.
//
// Thread rule: the engine loop. Ownership: borrows the parts.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/read_ops.h"
#include "server/engine/stats.h"
#include "server/engine/tier_keeper.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class Controls {
 public:
  // Most drains that may wait.
  static constexpr size_t kDrainsMax = 64;

  struct Parts {
    std::vector<tier::Tier*> tiers;
    ReadOps* reads = nullptr;
    TierKeeper* keeper = nullptr;
    EngineStats* stats = nullptr;
  };
  explicit Controls(const Parts& parts) : parts_(parts) {}

  void Begin(SetTierInService event, TimeNs now);
  // REQUIRES: the engine drains.
  void Begin(Drain event, TimeNs now);

  // At the end of a turn, once its numbers are published. Drains are answered with `result` when
  // they are `over` or their time is.
  void SendReplies(bool over, const DrainResult& result, TimeNs now);
  TimeNs NextDeadline() const;

 private:
  struct Waiting {
    TimeNs deadline = 0;
    absl::AnyInvocable<void(absl::StatusOr<DrainResult>)> reply;
  };

  const Parts parts_;
  std::vector<absl::AnyInvocable<void()>> replies_;
  std::vector<Waiting> drains_;
};

}  // namespace kvstream::engine
