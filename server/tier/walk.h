// Finds the chunk files below a tier's root, folder by folder, by plain calls: for whoever looks at
// the files themselves and not at what the index knows. Links are never followed, and at most the
// names of one folder are held.
//
// Thread rule: any thread; may block for as long as the file system does. Ownership: the
// descriptor is borrowed. Errors: see WalkChunks.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace kvstream::tier {

struct WalkCounts {
  // Names that are none of a chunk's, of files, folders and links; left alone.
  uint64_t foreign = 0;
  // Files on their way into a name or out of it, by this daemon or another.
  uint64_t temporary = 0;
  // Folders that could not be read, wholly or in part.
  uint64_t unreadable = 0;
};

// Calls `enter` before each folder is read, and `visit` with the path, relative to the root, of
// each regular file that has a chunk's name, v1/<32 hex>/<2 hex>/<2 hex>/<32 hex>.kv with the
// folders that the name asks for, until one of them returns false; and `temporary` with the name of
// each temporary file and its open folder. Files that come or go meanwhile may be visited or not. A
// folder that cannot be read is counted and passed over; an error is one of v1 itself, and a root
// without v1 has no files.
absl::Status WalkChunks(int root_fd, absl::FunctionRef<bool()> enter,
                        absl::FunctionRef<bool(const std::string& path)> visit,
                        absl::FunctionRef<void(int folder_fd, const char* name)> temporary,
                        WalkCounts* counts);

}  // namespace kvstream::tier
