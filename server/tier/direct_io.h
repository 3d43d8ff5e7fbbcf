// What a file system tells of direct I/O to its files, before it is tried.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace kvstream::tier {

struct DirectIo {
  // The file system tells (STATX_DIOALIGN).
  bool known = false;
  // What offsets, lengths and memory must be multiples of, bytes; 0 where there is none.
  uint32_t alignment = 0;
  // "tmpfs", or its magic number.
  std::string file_system;
};

// Asks about a file that it makes below v1/ of the root, and removes again. Errors name that file.
// May block for as long as the file system does.
absl::StatusOr<DirectIo> AskDirectIo(int root_fd, const std::string& root);

}  // namespace kvstream::tier
