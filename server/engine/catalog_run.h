// Speaks for this node in the catalog of one shared tier, and listens: once a second it says what
// the loop has handed to it, and hands to the loop what others have said.
//
// Thread rule: Run on a thread of its own, which may hang with the file system; all else from any
// thread, never blocking on files. Held by shared_ptr: whoever lets go of one that hangs leaves it
// to its thread.
// Ownership: borrows the poster until Stop has returned, and does not touch it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"
#include "server/catalog/shared_catalog.h"
#include "server/catalog/stats.h"
#include "server/engine/catalog_api.h"
#include "server/engine/events.h"
#include "server/store/catalog_log.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class CatalogRun final : public std::enable_shared_from_this<CatalogRun>,
                         private catalog::CatalogListener {
 public:
  struct Plan {
    TierId tier;
    tier::TierRoot root;
    // The root of the tier that knows which node this is.
    UniqueFd home;
    CatalogOptions options;
  };

  CatalogRun(EventPoster* poster, std::shared_ptr<catalog::CatalogStats> counts, Plan plan)
      : plan_(std::move(plan)), counts_(std::move(counts)), poster_(poster) {}

  void Run();

  // What the others shall hear.
  void Say(store::CatalogFrame frame);
  // How many frames wait to be said.
  size_t unsaid();
  // One HintsHeard was handled.
  void Taken();
  // Of the last look; UNAVAILABLE before the first one.
  absl::Status status();
  // When the last look ended, whatever came of it; 0: none has.
  TimeNs looked_at();

  // Asks it to say what waits, and to end.
  void Cancel();
  // And waits for that until `deadline`.
  void Stop(TimeNs deadline);

 private:
  // Handed over and not taken; more waits.
  static constexpr int kUntakenMax = 2;
  static constexpr size_t kHintsAtOnce = 512;

  // Waits for the next look; false: there is none.
  bool WaitForLook();
  // Where it is not open yet.
  absl::Status Open();
  absl::Status Look();
  absl::Status SayAll();
  void OnTellingAll() override;
  void OnAllTold() override;
  void OnEntry(const store::CatalogEntry& entry) override;
  void OnAdopted(const store::CatalogEntry& file) override;
  // Waits while too much is not taken; what is heard after Cancel is dropped.
  void Deliver();

  const Plan plan_;
  const std::shared_ptr<catalog::CatalogStats> counts_;

  // Of the thread.
  store::NodeId node_;
  std::unique_ptr<catalog::SharedCatalog> catalog_;
  HintsHeard heard_;
  std::string unsaid_bytes_;  // What an error has left.

  Mutex mu_;
  CondVar changed_;
  EventPoster* poster_ ABSL_GUARDED_BY(mu_);
  std::deque<store::CatalogFrame> unsaid_ ABSL_GUARDED_BY(mu_);
  int untaken_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  TimeNs looked_at_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_) = absl::UnavailableError("not looked at yet");
};

}  // namespace kvstream::engine
