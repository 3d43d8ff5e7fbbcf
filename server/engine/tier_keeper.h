// Takes tiers out of service and brings them back: by an operator's word, and by their health,
// which it judges by what comes back from them, and tries again on threads of their own. What a
// full quarantine does is the router's.
//
// Thread rule: the engine loop. Ownership: borrows the parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/engine/read_ops.h"
#include "server/engine/staging.h"
#include "server/engine/stats.h"
#include "server/sched/tier_health.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class TierKeeper {
 public:
  struct Parts {
    std::vector<tier::Tier*> tiers;
    ReadOps* reads = nullptr;
    Staging* staging = nullptr;
    EngineStats* stats = nullptr;
  };
  TierKeeper(const Parts& parts, const sched::TierHealthOptions& options)
      : parts_(parts), look_(options.writes_stuck / 8) {
    keeps_.resize(parts.tiers.size(), Keep{sched::TierHealth(options)});
  }

  // A read or a write has ended.
  void Note(const tier::Completion& completion, TimeNs now);
  // Returns whether that is a change.
  bool SetByOperator(TierId tier, bool in_service, TimeNs now);
  bool held_out(TierId tier) const { return keeps_[tier.value].held_out; }

  // Silent writes, and tries that are due or over.
  void Tick(TimeNs now);
  TimeNs NextDeadline() const { return next_deadline_; }
  void PublishStats(TimeNs now) const;

 private:
  // What a try has found, once it has.
  struct Result {
    Mutex mu;
    std::optional<absl::Status> status ABSL_GUARDED_BY(mu);
  };
  struct Keep {
    explicit Keep(const sched::TierHealth& h) : health(h) {}

    sched::TierHealth health;
    bool held_out = false;  // By an operator.
    bool reads_were_out = false;
    bool writes_were_out = false;
    std::shared_ptr<Result> result;  // Of the try that runs.
  };

  // Makes reads and writes follow what the tier's keep says.
  void Apply(TierId tier, TimeNs now);
  void Try(TierId tier);
  void TakeResult(TierId tier, TimeNs now);

  const Parts parts_;
  const TimeNs look_;        // How often it looks at writes in flight.
  std::vector<Keep> keeps_;  // By TierId.
  TimeNs next_deadline_ = kNever;
};

}  // namespace kvstream::engine
