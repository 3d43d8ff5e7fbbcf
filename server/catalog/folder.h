// A folder of a catalog on a shared tier, by plain calls that may block, and hang with the file
// system. Counts the calls that ask the file system for more than bytes: what a cluster's nodes do
// to its metadata.
//
// Thread rule: one thread. Errors: as ErrnoStatus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/stats.h"
#include "server/base/unique_fd.h"

namespace kvstream::catalog {

class Folder {
 public:
  // `path` below `root_fd`; folders that are missing are made. `calls` outlives it.
  static absl::StatusOr<Folder> Open(int root_fd, const std::string& path, Counter* calls);

  // In ascending order.
  absl::StatusOr<std::vector<std::string>> List() const;
  // Up to `bytes_max` from `offset` on; fewer, or none, at the end. NOT_FOUND: no such file.
  // DATA_LOSS: it is no regular file.
  absl::StatusOr<std::string> Read(const std::string& name, uint64_t offset,
                                   uint64_t bytes_max) const;
  // A file that nobody has made before, for writing. ALREADY_EXISTS.
  absl::StatusOr<UniqueFd> Create(const std::string& name) const;
  // In seconds, by the file system's own clock.
  absl::StatusOr<int64_t> ModifiedAt(const std::string& name) const;
  // Of those who move a file at once one succeeds; the others, NOT_FOUND.
  absl::Status Move(const std::string& from, const std::string& to) const;
  // Never takes a name that there is: ALREADY_EXISTS.
  absl::Status Rename(const std::string& from, const std::string& to) const;
  // OK where there was none.
  absl::Status Remove(const std::string& name) const;

 private:
  Folder(UniqueFd fd, std::string path, Counter* calls)
      : fd_(std::move(fd)), path_(std::move(path)), calls_(calls) {}

  UniqueFd fd_;
  std::string path_;  // For errors.
  Counter* calls_;
};

// All of `bytes` at `offset`.
absl::Status WriteAt(int fd, std::string_view bytes, uint64_t offset, std::string_view name);
// To the file system, where other machines see it.
absl::Status Flush(int fd, std::string_view name);

}  // namespace kvstream::catalog
