// What the index knows of our own files on a tier, as a file: read at a start, so that what lies
// there is known at once. FORMAT.md has the bytes. It may be old: what it names and is not there
// any more is a miss for whoever reads it, and what is there and it does not name is found by a
// walk.
//
// Thread rule: each object one thread. Ownership: everything is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/chunk_shape.h"
#include "server/base/types.h"
#include "server/store/chunk_index.h"
#include "server/store/xxh3.h"

namespace kvstream::store {

// The body of a snapshot, piece by piece, and its header at the end, when all is known.
class SnapshotWriter {
 public:
  // Those that nobody has used for longest come first. Of a key that comes twice the later counts.
  void Add(const OwnFile& file);
  // What was added since the last call, for the file behind what was taken before.
  std::string Take();
  size_t pending_bytes() const { return pending_.size(); }
  uint64_t files() const { return files_; }

  // REQUIRES: nothing is pending, and nothing is added afterwards. The file's first
  // kSnapshotHeaderBytes; `seconds` of the calendar.
  std::string Header(uint64_t seconds);

 private:
  absl::flat_hash_map<std::pair<NamespaceId, std::pair<uint64_t, uint64_t>>, uint32_t> kinds_;
  std::string pending_;
  uint64_t files_ = 0;
  uint64_t file_bytes_ = 0;
  SeededHash hash_{0};
};

inline constexpr size_t kSnapshotHeaderBytes = 64;

class SnapshotReader {
 public:
  // Checks all of the file. DATA_LOSS: it is damaged or cut short. UNIMPLEMENTED: of a version that
  // this build does not know.
  static absl::StatusOr<SnapshotReader> Open(std::string file);

  uint64_t files() const { return at_.size(); }
  // Of all of them together.
  uint64_t file_bytes() const { return file_bytes_; }
  // When it was written, in seconds of the calendar.
  uint64_t seconds() const { return seconds_; }

  // From the youngest to the oldest. `file` is valid in the call. False ends it.
  void ForEach(absl::FunctionRef<bool(const OwnFile& file)> visit) const;

 private:
  struct Kind {
    NamespaceId name_space;
    ChunkShape shape;
  };

  explicit SnapshotReader(std::string file) : file_(std::move(file)) {}
  // Notes where everything is.
  absl::Status Scan();

  std::string file_;
  std::vector<Kind> kinds_;
  std::vector<uint64_t> at_;  // Of each file's record.
  uint64_t file_bytes_ = 0;
  uint64_t seconds_ = 0;
};

}  // namespace kvstream::store
