// Takes tiers out of service and brings them back: by an operator's word, and by their health,
// which it judges by what comes back from them, and tries again on threads of their own. What a
// full quarantine does is the router's.
//
// Thread rule: the engine loop. Ownership: borrows the parts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/quiet_period.h"
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
    // False: tries run on the loop, which a simulation is.
    bool threads = true;
  };
  TierKeeper(const Parts& parts, const sched::TierHealthOptions& options) : parts_(parts) {
    for (size_t i = 0; i < parts.tiers.size(); ++i) keeps_.emplace_back(sched::TierHealth(options));
  }

  // A read of a content or a write has ended. Many reads of one file are one failure: it may be the
  // file's alone.
  void NoteRead(const tier::Completion& completion, const ContentId& content, TimeNs now);
  void NoteWrite(const tier::Completion& completion, TimeNs now);
  // Returns whether that is a change.
  bool SetByOperator(TierId tier, bool in_service, TimeNs now);

  // Silent writes, and tries that are due or over.
  void Tick(TimeNs now);
  TimeNs NextDeadline() const;
  void PublishStats(TimeNs now);

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
    bool takes_no_writes = false;
    bool probe_failed = false;  // Since it went out, and that was said.
    QuietPeriod late_quiet;
    // Contents of which reads have failed since one went well.
    absl::InlinedVector<ContentId, 8> failed;
    std::shared_ptr<Result> result;  // Of the try that runs.
  };

  // Makes reads and writes follow what the keeps say.
  void Apply(TimeNs now);
  void ApplyReads(TierId tier, TimeNs now);
  // The last tier that would take writes keeps being asked: they fail and are told, where they
  // would else wait in the pool.
  void ApplyWrites(TierId tier, bool others_take);
  void Try(TierId tier);
  void TakeResult(TierId tier, TimeNs now);
  void NoteLate(TierId tier, bool late, TimeNs now);
  TierCauses& CausesOf(TierId tier) { return parts_.stats->causes[tier.value]; }

  const Parts parts_;
  std::deque<Keep> keeps_;  // By TierId.
  TimeNs next_deadline_ = kNever;
};

}  // namespace kvstream::engine
