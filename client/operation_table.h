// The operations of a session that have not ended, and the rule by which a lost session ends them:
// only after both its stream and its handoff connection are gone, because until the daemon has
// closed the latter it may still touch the client's memory.
//
// Thread rule: any thread; operations are told outside the lock. The stream is read by one thread
// at a time and tells its end last, so no operation sees an event after its end. Outcomes pass
// through the landing handler, where there is one: they wait for the copies that came before them.
// Ownership: shares the operations until they end, and the landing handler.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/landing_handler.h"
#include "client/operation.h"
#include "kvstream/v1/kvstream.pb.h"

namespace kvstream {

class OperationTable {
 public:
  // From now on events with the operation's id are its own. UNAVAILABLE once the session is over;
  // the operation is not kept then.
  absl::Status Add(std::shared_ptr<Operation> operation) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets an operation that the daemon never heard of. False when it has ended meanwhile.
  bool Remove(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

  // REQUIRES: none was set, and no operation needs it yet.
  void SetLandingHandler(std::shared_ptr<LandingHandler> handler) ABSL_LOCKS_EXCLUDED(mu_);
  // Null when none was set.
  std::shared_ptr<LandingHandler> landing_handler() const ABSL_LOCKS_EXCLUDED(mu_);

  // Tells the operation that the event is about, or the landing handler. Events of no known
  // operation, and landing events without a handler, mean nothing.
  void Dispatch(const v1::Event& event) ABSL_LOCKS_EXCLUDED(mu_);

  // The two halves of a session's end, each once, in any order. The first one's cause becomes the
  // session's status; the second ends every operation with it.
  void StreamEnded(const absl::Status& cause) ABSL_LOCKS_EXCLUDED(mu_);
  void HandoffEnded() ABSL_LOCKS_EXCLUDED(mu_);
  // The cause of an end that is about to be made; the first one stands.
  void SetCause(const absl::Status& cause) ABSL_LOCKS_EXCLUDED(mu_);

  // OK while the session lives, then the cause of its end.
  absl::Status session_status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void EndHalf(bool OperationTable::*half, const absl::Status& cause) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  bool stream_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool handoff_ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status session_status_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Operation>> operations_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<LandingHandler> landing_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream
