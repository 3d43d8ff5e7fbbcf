// A scrub of one tier: walks its folders, not the index, which a restart forgets, and reads every
// chunk file past the caches and at a limited rate. A damaged file leaves the index at once; it
// leaves its name only for a whole copy of another tier, that lies ready under a temporary name, or
// if there is none to be had. Between two reads it waits for so long while the tier is out of
// service.
//
// Thread rule: Run on a thread of its own, which may hang with the file system, as may those that
// it has for copies; all else from any thread, never blocking on files. Held by shared_ptr: whoever
// lets go of one that hangs leaves it to its threads.
// Ownership: borrows poster, stats and sink until Stop has returned, and touches none afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/engine/events.h"
#include "server/engine/pace.h"
#include "server/engine/scrub_api.h"
#include "server/engine/stats.h"
#include "server/store/chunk_format.h"
#include "server/tier/publication.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class ScrubRun : public std::enable_shared_from_this<ScrubRun> {
 public:
  struct Listeners {
    // Told of damaged and repaired files, and with TierScrubbed of the end.
    EventPoster* poster = nullptr;
    EngineStats* stats = nullptr;
    // Told of the progress, not of the end. Null: nobody asked.
    std::shared_ptr<ScrubSink> sink;
  };
  struct TierFiles {
    std::string name;
    tier::TierRoot root;
    // Its files are opened for direct I/O.
    bool direct = false;
    // They are flushed to the device before they are published.
    bool fsync = false;
  };

  // `tiers`, by TierId, are all that may have a good copy; `tier` is scrubbed.
  ScrubRun(Listeners listeners, std::vector<TierFiles> tiers, TierId tier,
           uint64_t bytes_per_second, TimeNs patience);

  void Run();

  bool ended();
  // Of one that has ended. UNAVAILABLE names a tier that was out, or did not answer, for too long.
  // That one was mounted anew is for whoever compares.
  absl::Status status();
  ScrubProgress progress();
  // When its thread was last seen outside of a system call.
  TimeNs seen_at();
  // Of the tiers that it reads, by TierId.
  const std::vector<TierFiles>& tiers() const { return tiers_; }
  // Asks it to end, for this reason, if it has not.
  void Cancel(const absl::Status& why);
  // Asks it to end, and waits for that until `deadline`.
  void Stop(TimeNs deadline);

 private:
  using OnBlocks = absl::FunctionRef<bool(std::span<const std::byte>)>;
  enum class Verdict : uint8_t { kWhole, kDamaged, kMissing, kForeign, kUnreadable, kGivenUp };
  // What a look at a file has shown.
  struct Seen {
    Verdict verdict;
    // Of a whole one.
    store::ChunkHeader header;
    // Of others.
    std::string why;
  };
  // A copy on its way under a temporary name, by a thread of its own, since it may hang with the
  // tier that it comes from.
  struct Copying {
    Copying(TierId source, const TierFiles& into, const std::string& path)
        : from(source), publication(into.root.fd.get(), path, into.direct, into.fsync) {}

    const TierId from;
    tier::Publication publication;  // The thread's until `seen` is there.
    // Guarded by the run's mutex.
    std::optional<Seen> seen;
    TimeNs seen_at = 0;
    bool given_up = false;
  };

  // How often it looks whether its tier is back, or whether anybody listens.
  static constexpr TimeNs kLook = 50 * kMillisecond;

  // Of the scrubbed tier's file system.
  uint64_t mount() const { return tiers_[tier_.value].root.mount; }
  static void NameThread(const char* name);

  // scrub_run.cc: the files of the tier, and when to go on.
  // False: the scrub ends.
  bool Visit(const std::string& path);
  // Reads and verifies the file of this path in a tier.
  Seen Look(TierId in, const std::string& path, OnBlocks on_blocks);
  // Counts what was read, and waits until more may be. False: the scrub ends, or the copy.
  bool Spend(uint64_t bytes, Copying* copy = nullptr);
  // Of work that reads no file's bytes, or whose reading is another's.
  bool Charge(uint64_t bytes);
  // Waits until `due`, and while the tier is out, but not for ever.
  bool GoOn(TimeNs due, Copying* copy = nullptr);
  bool MayGoOn(Copying* copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsOut(TierId tier) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Say() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SayNowAndThen(TimeNs now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Count(uint64_t ScrubProgress::*number, Counter TierEngineStats::*counter, uint64_t n);
  // The first file of each kind; the log ends with the daemon, before a thread that hangs.
  void WarnOnce(bool* warned, const char* what, const std::string& path, const std::string& cause);
  void Post(Event event);

  // scrub_repair.cc: what becomes of a damaged file.
  // True: the name has a whole file again. `bytes`: what was read of the damaged one.
  bool Repair(const std::string& path, uint64_t bytes);
  // A whole file of another tier under a temporary name. Null where there is none, and `*cause`
  // says why; then `*may_be`: there may be one all the same.
  std::shared_ptr<Copying> CopyFromOthers(const std::string& path, std::string* cause,
                                          bool* may_be);
  Seen Copy(const std::string& path, const std::shared_ptr<Copying>& copy);
  void CopyOnItsThread(const std::string& path, std::shared_ptr<Copying> copy);
  // Of a copy that cannot be used.
  void CountBadCopy(TierId tier, Verdict verdict);
  // Waits until the damaged file has left its name, for the copy, if any. False: for too long.
  bool SetAside(const std::string& path, const std::shared_ptr<Copying>& copy);

  const std::vector<TierFiles> tiers_;
  const TierId tier_;
  const TimeNs patience_;

  // Of the thread.
  TierSet silent_;  // Their copies did not come.
  bool warned_damaged_ = false;
  bool warned_unreadable_ = false;
  bool warned_unrepaired_ = false;

  Mutex mu_;
  CondVar changed_;
  Listeners listeners_ ABSL_GUARDED_BY(mu_);
  ScrubProgress progress_ ABSL_GUARDED_BY(mu_);
  Pace pace_ ABSL_GUARDED_BY(mu_);
  TimeNs said_at_ ABSL_GUARDED_BY(mu_) = 0;
  TimeNs seen_at_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);  // Not OK: it ends.
  bool warned_out_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool set_aside_ ABSL_GUARDED_BY(mu_) = false;  // The file that is on its way.
};

}  // namespace kvstream::engine
