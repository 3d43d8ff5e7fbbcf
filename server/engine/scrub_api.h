// What a scrub says to the engine and to whoever asked for it, as plain structs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/base/types.h"
#include "server/store/chunk_format.h"

namespace kvstream::engine {

struct ScrubOptions {
  // Of scrubs that do not say how fast they may read. At least 1.
  uint64_t bytes_per_second = 64 * kMiB;
  // From a start to the first scrub of all tiers, and from one to the next; 0: only when asked.
  TimeNs every = 0;
  // How long a scrub waits for a tier that is out of service, or does not answer.
  TimeNs patience = 60 * kSecond;
};

// What a scrub has done to a tier so far.
struct ScrubProgress {
  TierId tier;
  // Chunk files that were read, and bytes, those of other tiers' files for repairs among them.
  uint64_t files = 0;
  uint64_t bytes = 0;
  uint64_t damaged = 0;
  uint64_t repaired = 0;
  // Of the damaged ones, those that had no whole copy; what is left over is kept, unused.
  uint64_t deleted = 0;
  // Could not be read now, which says nothing of the file.
  uint64_t unreadable = 0;
  // No chunk file of a version that we know; left alone.
  uint64_t foreign = 0;
  bool done = false;
};

// Who asked for a scrub; the rpc room implements it. Send and cancelled are called on the scrub's
// threads, which hold a lock of the scrub, and End on the loop; nothing blocks or calls back.
class ScrubSink {
 public:
  virtual ~ScrubSink() = default;
  // As a tier begins, about every second, and when it is done.
  virtual void Send(const ScrubProgress& progress) = 0;
  // Called once, last.
  virtual void End(absl::Status status) = 0;
  // Nobody listens any more: the scrub ends soon.
  virtual bool cancelled() const = 0;
};

// Reads every chunk file of these tiers, one after the other, and repairs what is damaged. One
// scrub at a time: FAILED_PRECONDITION names the tier where one is, but one that nobody asked for
// ends for one that somebody does. UNAVAILABLE names a tier that was mounted anew, was out, or did
// not answer, for ScrubOptions::patience; the others are scrubbed all the same.
struct BeginScrub {
  TierSet tiers;
  // 0 means the configured rate.
  uint64_t bytes_per_second = 0;
  // Null: nobody asked.
  std::shared_ptr<ScrubSink> sink;
};

// A scrub has found that a file is damaged: no read shall use it.
struct FileDamaged {
  TierId tier;
  // tier::TierRoot::mount of the file system that has it.
  uint64_t mount = 0;
  std::string path;
  KeyDigest key;
  // tier::SetAsideRequest::replace.
  absl::AnyInvocable<int()> replace;
  // Null: the file stays where it is. Else it is set aside; called on the engine loop once that is
  // over, or could not be done.
  absl::AnyInvocable<void()> done;
};

// A file is whole that was damaged: a scrub has published it anew, or another node has.
struct FileRepaired {
  TierId tier;
  uint64_t mount = 0;
  KeyDigest key;
  NamespaceId name_space;
  store::ChunkHeader header;
};

// The scrub of a tier has ended: Scrubber knows which.
struct TierScrubbed {};

}  // namespace kvstream::engine
