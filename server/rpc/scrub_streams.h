// The streams of Admin.Scrub: each hands on what the engine's scrub says. A client that reads
// slowly gets fewer messages, the newest of each tier. A client that goes away ends its scrub, and
// its stream does not wait for that: the scrub may hang with a file system.
//
// Thread rule: any thread; nothing blocks. Ownership: a stream is gRPC's and deletes itself; this
// outlives the server. The engine holds a link to the stream, which may outlive both.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kvstream/v1/admin.pb.h"
#include "server/base/types.h"
#include "server/engine/events.h"
#include "server/rpc/facts.h"

namespace kvstream::rpc {

class ScrubStreams {
 public:
  // Most streams at once, those among them that the engine is about to refuse.
  static constexpr size_t kStreamsMax = 64;

  struct Request {
    TierSet tiers;
    // 0 means the config's.
    uint64_t bytes_per_second = 0;
    // How a scrub ends that goes well: not OK where it does not cover what was asked for.
    absl::Status at_best = {};
  };

  ScrubStreams(const Facts& facts, engine::EventPoster& poster) : facts_(facts), poster_(poster) {}

  // A stream, begun, or the refusal of one: for the cause that stands in for a request,
  // RESOURCE_EXHAUSTED past kStreamsMax, UNAVAILABLE after EndAll.
  grpc::ServerWriteReactor<v1::ScrubProgress>* Begin(const absl::StatusOr<Request>& request);

  // Ends every stream with UNAVAILABLE, for good, and so the scrub.
  void EndAll();

 private:
  class Stream;
  class Link;
  class Sink;
  absl::Status Add(Stream* stream);
  void Forget(Stream* stream);

  const Facts& facts_;
  engine::EventPoster& poster_;
  absl::Mutex mu_;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvstream::rpc
