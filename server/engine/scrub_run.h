// One scrub: walks the folders of some tiers, not the index, which a restart forgets, and reads
// every chunk file past the caches and at a limited rate. A damaged file is set aside by the loop,
// and published anew, whole, from another tier that has it. Between two reads it waits while the
// tier is out of service.
//
// Thread rule: Run on a thread of its own, which may hang with the file system; all else from any
// thread, never blocking on files. Held by shared_ptr: whoever lets go of one that hangs leaves it
// to its thread.
// Ownership: borrows poster and stats until Stop has returned, and touches neither afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"
#include "server/engine/events.h"
#include "server/engine/pace.h"
#include "server/engine/scrub_api.h"
#include "server/engine/stats.h"
#include "server/store/chunk_format.h"

namespace kvstream::engine {

class ScrubRun : public std::enable_shared_from_this<ScrubRun> {
 public:
  struct TierFiles {
    std::string name;
    UniqueFd root;
    // Its files are opened for direct I/O.
    bool direct = false;
  };

  // `tiers`, by TierId, are all that may have a good copy; those in `wanted` are scrubbed.
  ScrubRun(EventPoster* poster, EngineStats* stats, std::vector<TierFiles> tiers, TierSet wanted,
           uint64_t bytes_per_second, std::shared_ptr<ScrubSink> sink);

  // Ends the sink, if any.
  void Run();

  bool ended();
  // The tier that is being scrubbed.
  std::string tier_name();
  // Asks it to end, and waits for that until `deadline`.
  void Stop(TimeNs deadline);

 private:
  using OnBlocks = absl::FunctionRef<bool(std::span<const std::byte>)>;
  enum class Verdict : uint8_t { kWhole, kDamaged, kMissing, kForeign, kUnreadable, kGivenUp };

  absl::Status ScrubTier(TierId tier);
  // False: the scrub ends.
  bool Visit(const std::string& path);
  // Reads and verifies the file of this path in a tier; the header of a whole one.
  Verdict Look(TierId in, const std::string& path, OnBlocks on_blocks, store::ChunkHeader* header);
  // True: the name has a whole file again.
  bool Repair(const std::string& path);
  // Waits until the loop has freed the name, or tried.
  bool SetAside(const std::string& path);
  // Publishes the file of another tier under the name. What the name has then.
  Verdict Copy(TierId from, const std::string& path, store::ChunkHeader* header);

  // Counts what was read, and waits until more may be.
  bool Spend(uint64_t bytes);
  // Waits until `due`, and while the tier is out. False: the scrub ends.
  bool GoOn(TimeNs due);
  bool Cancelled() const { return sink_ != nullptr && sink_->cancelled(); }
  void Say();
  void LogEnd(const absl::Status& status);

  bool IsOut(TierId tier);
  void Count(Counter TierEngineStats::*counter, uint64_t n);
  void ShowScrubbing(bool scrubbing);
  void Post(Event event);

  const std::vector<TierFiles> tiers_;
  const TierSet wanted_;
  const uint64_t bytes_per_second_;
  const std::shared_ptr<ScrubSink> sink_;

  // Of the thread.
  TierId tier_;
  ScrubProgress progress_;
  Pace pace_;
  TimeNs said_at_ = 0;
  bool over_ = false;  // Cancelled or stopped.

  Mutex mu_;
  CondVar changed_;
  EventPoster* poster_ ABSL_GUARDED_BY(mu_);
  EngineStats* stats_ ABSL_GUARDED_BY(mu_);
  std::string tier_name_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool name_free_ ABSL_GUARDED_BY(mu_) = false;  // Of the file that is set aside.
};

}  // namespace kvstream::engine
