// A tier: one storage path, a directory on a mounted file system. This is the contract that every
// tier engine keeps, the real ones and the fake one of the tests (tests/tier/tier_contract_test.cc
// runs the same body over all of them).
//
//   - Nothing here blocks the caller. Requests are queued; the tier's own threads do the I/O.
//   - Every accepted request gets exactly one completion, in any order, through the sink, also
//     while stopping. A completion may come before the call returns.
//   - From the call until its completion the tier may touch the request's memory, whatever became
//     of the operation that asked for it. In-flight disk I/O cannot be cancelled.
//   - Reads never wait for writes: the two directions have their own thread and ring.
//   - Paths are relative to the tier's root, made of digests (store::ChunkPath), never a client's.
//
// Thread rule: calls may come from any one thread at a time (the engine loop). The sink is called
// on the tier's threads, and must not block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/stats.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"

namespace kvstream::tier {

// Offsets, lengths and memory of every request are multiples of this.
inline constexpr uint64_t kBlockBytes = 4096;

enum class IoEngine : uint8_t {
  // io_uring where it starts, else threads.
  kAuto,
  kUring,
  kThreads,
};

struct TierOptions {
  TierId id;
  std::string name;
  // An existing directory, absolute.
  std::string root;
  // Where the file system of the root is mounted: the tier is refused while nothing is. Empty: not
  // looked at.
  std::string mount_point;
  // A file system that is mounted there anew takes the place of one that has failed.
  bool follows_mount = false;
  // Size of one device request, bytes: a power of two, at least kBlockBytes.
  uint64_t io_bytes = 512 * kKiB;
  // Most device requests in flight for each direction; what exceeds it waits in the tier.
  uint32_t queue_depth = 256;
  // Descriptors kept open for reading, least recently used closed first.
  uint32_t open_files_max = 1024;
  // Flush a file to the device before it is published.
  bool fsync = false;
  IoEngine io_engine = IoEngine::kAuto;
  // kThreads: threads for each direction, 1 .. 256.
  uint32_t io_threads = 16;
  // Register the memory given to the tier with its rings.
  bool register_memory = true;
};

// What the start-up probe found out.
struct TierFacts {
  // "io_uring" or "threads".
  std::string io_engine;
  // Why it is not io_uring; empty when it is, or when threads were asked for.
  std::string engine_reason;
  // False: I/O is buffered, and why.
  bool direct = false;
  std::string buffered_reason;
  // Alignment of direct I/O, bytes.
  uint32_t alignment = 0;
  // The memory given to the tier is registered with its rings. False where there was none to
  // register, or the kernel refused with this errno.
  bool registered_buffers = false;
  int registration_error = 0;
};

// Reads `length` bytes at `offset` of a file into `buffer`. The file is opened as needed.
struct ReadRequest {
  Ticket ticket;
  // Not owned; must stay as it is until the completion.
  const std::string* path = nullptr;
  uint64_t offset = 0;
  uint64_t length = 0;
  // Not owned.
  std::byte* buffer = nullptr;
};

// Publishes a file: a temporary in the same folder, `header` then `pieces` one after the other,
// link to `path`, unlink the temporary. Never replaces: an existing `path` ends in
// kAlreadyExists with the beginning of that file in the completion.
struct WriteRequest {
  Ticket ticket;
  // Not owned; must stay until the completion, as must the bytes of header and pieces.
  const std::string* path = nullptr;
  // kBlockBytes long.
  std::span<const std::byte> header;
  std::vector<std::span<const std::byte>> pieces;
};

// Takes a file out of its name, which nobody looks for there any more: one that is given up is
// unlinked. One that is damaged is renamed to a random name, `damaged` asked again about the
// renamed file (another node may have replaced it meanwhile), and it is unlinked if so or linked
// back if not, or if that cannot be told: then the completion has the code of the error. A missing
// file is success. Cached descriptors of the path are dropped.
struct SetAsideRequest {
  Ticket ticket;
  // Not owned; must stay until the completion.
  const std::string* path = nullptr;
  // Called on the tier's housekeeping thread with a descriptor of OpenToJudge, and may block. Null:
  // the file is given up, whatever it is.
  absl::AnyInvocable<absl::StatusOr<bool>(int fd)> damaged;
  // Where set: called there once the name is free, to give it to another file, before the damaged
  // one is unlinked. Returns 0 or an errno; EEXIST is as good as 0, and after any other the damaged
  // file has its name again.
  absl::AnyInvocable<int()> replace;
};

// What a file system has, and what of it is free to us.
struct Space {
  uint64_t bytes = 0;
  uint64_t free_bytes = 0;
  // 0: it does not count them.
  uint64_t inodes = 0;
  uint64_t free_inodes = 0;
};

struct Completion {
  enum class Kind : uint8_t { kRead, kWrite, kSetAside, kMeasure };
  Kind kind = Kind::kRead;
  TierId tier;
  Ticket ticket;
  // kOk; kNotFound: no such file; kDataLoss: the file ended before the read did;
  // kAlreadyExists: see WriteRequest; others by ErrnoStatus.
  absl::StatusCode code = absl::StatusCode::kOk;
  // The errno behind `code`, 0 if none.
  int error = 0;
  // Write that met an existing file: its first kBlockBytes (fewer if it is shorter) and its size.
  std::vector<std::byte> existing_header;
  uint64_t existing_bytes = 0;
  // Of kMeasure.
  Space space;
};

// Where completions go.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  // Takes the elements by moving from them.
  virtual void OnCompletions(std::span<Completion> completions) = 0;
};

// Kept by the tier, read by anyone.
struct TierStats {
  Counter bytes_read;
  Counter bytes_written;
  Counter read_errors;
  Counter write_errors;
  Counter short_reads_resumed;
  Counter retries;
  // Completions whose request is unknown; always a bug or a stale completion, never used.
  Counter unknown_completions;
  // Opens that met the limit of descriptors; each is tried again once where an idle one was closed.
  Counter descriptor_shortages;
  // Files with names of our own, of writes and of files set aside, that could not be removed.
  Counter temporaries_left;
  // File systems that took the place of the one that the tier was on.
  Counter remounts;
  Gauge open_files;
};

// The file system that a tier is on, for plain calls on a thread of the caller's.
struct TierRoot {
  // The caller's own. Invalid where there is no such folder, or no descriptor left.
  UniqueFd fd;
  // TierStats::remounts of this file system: while it stays so, the tier is on no other.
  uint64_t mount = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual const TierOptions& options() const = 0;
  virtual const TierFacts& facts() const = 0;
  virtual const TierStats& stats() const = 0;

  virtual void Read(std::span<const ReadRequest> requests) = 0;
  virtual void Write(WriteRequest request) = 0;
  virtual void SetAside(SetAsideRequest request) = 0;
  // How much room the file system has; behind what is being set aside.
  virtual void Measure(Ticket ticket) = 0;

  // Work that tries the file system again after failures: a file is written, read back and
  // unlinked. It may block for ever, on any thread, and touches nothing of the tier's but what it
  // owns.
  virtual absl::AnyInvocable<absl::Status()> Recheck() const = 0;

  // The file system that the tier is on now, whatever is mounted there by now.
  virtual TierRoot Root() const = 0;

  // Refuses nothing (the caller has stopped asking), waits for the completions of all accepted
  // requests and ends the threads. False when some had not come by `deadline`: the memory of those
  // requests must then stay mapped for the life of the process.
  [[nodiscard]] virtual bool Stop(TimeNs deadline) = 0;
};

// Opens a tier over a directory and probes it: a real aligned write, link, read back, compare and
// unlink under `<root>/v1`, which is made if missing. `memory` is the staging pool, registered with
// the rings where the kernel allows it, and must outlive the tier, as must `sink`.
// NOT_FOUND, PERMISSION_DENIED and others name the path that failed, or io_uring where kUring was
// asked for and refused.
absl::StatusOr<std::unique_ptr<Tier>> OpenFileTier(const TierOptions& options,
                                                   std::span<std::byte> memory,
                                                   CompletionSink* sink);

}  // namespace kvstream::tier
