// The streams of Admin.Watch: each writes a status at once and then every interval, one write at a
// time, so that a slow reader gets fewer statuses and never holds more than one here. Between
// writes a watch is a gRPC alarm; no thread waits for it.
//
// Thread rule: any thread; nothing blocks. Ownership: a watch is gRPC's and deletes itself; this
// outlives the server.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kvstream/v1/admin.pb.h"
#include "server/base/types.h"
#include "server/rpc/status_report.h"

namespace kvstream::rpc {

class StatusWatches {
 public:
  // Most watches at once.
  static constexpr size_t kWatchesMax = 64;

  explicit StatusWatches(const StatusReport& report) : report_(report) {}

  // A watch, begun, or the refusal of one: for the cause that stands in for an interval,
  // RESOURCE_EXHAUSTED past kWatchesMax, UNAVAILABLE after EndAll.
  grpc::ServerWriteReactor<v1::Status>* Begin(const absl::StatusOr<TimeNs>& interval);

  // Ends every watch with UNAVAILABLE, for good. One whose client does not read ends when its call
  // is cancelled.
  void EndAll();

 private:
  class Watch;
  absl::Status Add(Watch* watch);
  void Forget(Watch* watch);

  const StatusReport& report_;
  absl::Mutex mu_;
  absl::flat_hash_set<Watch*> watches_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvstream::rpc
