// Finds the files that were on a tier before this start: first those that the index snapshot names,
// without a look at them, then all that a walk meets and the snapshot does not name, by their
// headers. On the way the walk removes temporary files of daemons that are gone. On a shared tier,
// which is not walked, this node's own log in the catalog says what the snapshot does not name.
//
// Thread rule: Run on a thread of its own, which may hang with the file system; all else from any
// thread, never blocking on files. Held by shared_ptr: whoever lets go of one that hangs leaves it
// to its thread.
// Ownership: borrows poster and stats until Stop has returned, and touches neither afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"
#include "server/engine/events.h"
#include "server/engine/restore_api.h"
#include "server/engine/stats.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class RestoreRun : public std::enable_shared_from_this<RestoreRun> {
 public:
  struct Plan {
    TierId tier;
    std::string name;
    tier::TierRoot root;
    // Its files are opened for direct I/O.
    bool direct = false;
    // The folder that has the snapshot, and its path in there. Invalid: there is none.
    UniqueFd home;
    std::string snapshot;
    // Files that the snapshot does not name are looked for.
    bool walk = false;
    // What this node's log in the catalog of the tier names is taken, too.
    bool catalog = false;
    TimeNs temporaries_grace = 0;
  };

  RestoreRun(EventPoster* poster, EngineStats* stats, Plan plan);

  void Run();

  // One FilesFound was handled.
  void Taken();
  bool ended();
  // Asks it to end.
  void Cancel();
  // And waits for that until `deadline`.
  void Stop(TimeNs deadline);

 private:
  // Handed over and not taken; more waits.
  static constexpr int kUntakenMax = 2;
  static constexpr size_t kFilesAtOnce = 512;
  // Files whose headers are read before they are handed over, and by how many threads: a read of a
  // header waits for the device and does little else. Meanwhile the walk goes on.
  static constexpr size_t kPathsAtOnce = 2048;
  static constexpr size_t kReaders = 16;
  struct Headers {
    ~Headers();

    std::vector<std::string> paths;
    std::vector<std::vector<FoundFile>> found;  // By reader.
    std::vector<std::thread> threads;
  };

  void ReadSnapshot();
  // What this node has told the others that it has, and the snapshot does not name: older than what
  // that names, since it may be gone. False: the run ends.
  bool ReadCatalog();
  void Walk();
  // Begins to read these, once what was begun before is handed over. False: the run ends.
  bool BeginHeaders(std::vector<std::string> paths);
  bool EndHeaders();
  // Appends what the file is, unless it is none of ours or damaged.
  void ReadHeader(const std::string& path, std::vector<FoundFile>* found);
  void MaybeRemove(int folder_fd, const char* name);
  // Files that the snapshot names and the walk did not meet. False: the run ends.
  bool TellMissing();

  // Waits while too much is not taken. False: the run ends.
  bool Deliver(std::vector<FoundFile> files, std::vector<KeyDigest> missing = {});
  // For the log, which ends with the daemon, before a thread that hangs.
  bool Listened();
  bool GoOn();
  void Post(Event event);
  // Of the tier, in the numbers.
  void Count(Counter TierEngineStats::*counter, uint64_t n);

  const Plan plan_;

  // Of the thread.
  absl::flat_hash_set<KeyDigest> named_;  // By the snapshot, and not met yet.
  uint64_t found_ = 0;
  uint64_t missing_ = 0;
  uint64_t temporaries_ = 0;
  std::optional<Headers> headers_;

  Mutex mu_;
  CondVar changed_;
  EventPoster* poster_ ABSL_GUARDED_BY(mu_);
  EngineStats* stats_ ABSL_GUARDED_BY(mu_);
  int untaken_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unusable_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvstream::engine
