// Publishes one file by plain calls, as WriteLane does by its loop: a temporary in the same folder,
// linked to its name once it is whole, and unlinked. For whoever has a thread of its own, and all
// the time that the file system takes.
//
// Thread rule: one thread at a time; every call may block. Ownership: the root's descriptor is
// borrowed; what is not finished leaves nothing behind. Errors: errno values, 0 for none.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "server/base/unique_fd.h"

namespace kvstream::tier {

class Publication {
 public:
  // Of `path`, relative to the root. `direct`: past the caches. `fsync`: flushed to the device
  // before it can have its name.
  Publication(int root_fd, std::string path, bool direct, bool fsync);
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;
  ~Publication();

  // Makes the temporary, and folders that are missing.
  int Begin();
  // Whole blocks, aligned to blocks.
  int Append(std::span<const std::byte> blocks);
  // Nothing more will come.
  int Finish();
  // REQUIRES: it is finished. EEXIST: the name is taken, and stays as it is.
  int Link();

 private:
  const int root_fd_;
  const std::string path_;
  const bool direct_;
  const bool fsync_;
  std::string temporary_;
  UniqueFd fd_;
};

}  // namespace kvstream::tier
