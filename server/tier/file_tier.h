// The tier over files, by either I/O engine: three threads, one that reads, one that writes, and
// one that sets files aside, so that none of them ever waits for another.
//
// Thread rule and ownership: those of Tier. Destroying it stops it with no patience; what has not
// come back by then is left behind with all that it may touch, as after a Stop that returned false.
#pragma once

#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/base/unique_fd.h"
#include "server/tier/housekeeping.h"
#include "server/tier/io_loop.h"
#include "server/tier/lane_parts.h"
#include "server/tier/read_lane.h"
#include "server/tier/tier.h"
#include "server/tier/write_lane.h"

namespace kvstream::tier {

class FileTier final : public Tier {
 public:
  // OpenFileTier; `wrap`, if any, wraps the queue of each lane, once the probe is over.
  static absl::StatusOr<std::unique_ptr<Tier>> Open(const TierOptions& options,
                                                    std::span<std::byte> memory,
                                                    CompletionSink* sink, QueueWrapper wrap);
  ~FileTier() override;

  const TierOptions& options() const override { return body_->options; }
  const TierFacts& facts() const override { return body_->facts; }
  const TierStats& stats() const override { return body_->stats; }

  void Read(std::span<const ReadRequest> requests) override;
  void Write(WriteRequest request) override;
  void SetAside(SetAsideRequest request) override;
  void Measure(Ticket ticket) override;
  absl::AnyInvocable<absl::Status()> Recheck() const override;
  TierRoot Root() const override;
  [[nodiscard]] bool Stop(TimeNs deadline) override;

 private:
  // Everything that the threads touch.
  struct Body {
    Body(const TierOptions& o, UniqueFd r) : options(o), root(std::move(r)) {}

    const TierOptions options;
    const UniqueFd root;
    TierFacts facts;
    TierStats stats;
    std::unique_ptr<ReadLane> reader;
    std::unique_ptr<WriteLane> writer;
    std::unique_ptr<Housekeeping> housekeeping;
  };

  // Probes with an engine and starts the lanes with it. `refused` is set where it was the engine
  // that failed, and another may do.
  static absl::Status StartWith(IoEngine engine, const LaneParts& parts, Body* body,
                                absl::Status* refused);
  static absl::Status StartLanes(const LaneParts& parts, Body* body);

  // What a recheck that went well may put another root in place of; it may outlive the tier.
  struct Place {
    Mutex mu;  // Held while the root becomes another.
    // Null once the tier stops.
    Body* body ABSL_GUARDED_BY(mu) = nullptr;
  };

  explicit FileTier(std::unique_ptr<Body> body);

  std::unique_ptr<Body> body_;
  const std::shared_ptr<Place> place_ = std::make_shared<Place>();
  bool stopped_ = false;
  // Threads still run: body_ must never be destroyed.
  bool abandoned_ = false;
};

}  // namespace kvstream::tier
