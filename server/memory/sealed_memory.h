// Shared memory that cannot shrink under its users: a memfd sealed with F_SEAL_SHRINK, mapped for
// reading and writing. The staging pool is one; host buffers are others. A client that could
// truncate its memory could kill the daemon with SIGBUS, so an unsealed descriptor is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/unique_fd.h"

namespace kvstream::memory {

class SealedMemory {
 public:
  // Makes `bytes` (rounded up to the page size) of zeroed memory named `name` in /proc, sealed
  // against shrinking, growing and further sealing. With `huge_pages`, tries 2 MiB pages first and
  // falls back to ordinary ones; huge_pages() tells which. RESOURCE_EXHAUSTED when there is no
  // memory for it; INVALID_ARGUMENT for 0 bytes. Memory whose descriptor goes to a peer must not
  // have huge pages: a peer that punches holes into them can make the next touch a SIGBUS.
  static absl::StatusOr<std::unique_ptr<SealedMemory>> Create(const std::string& name,
                                                              uint64_t bytes, bool huge_pages);

  // Maps a peer's memfd. INVALID_ARGUMENT when it is not a sealable memfd, lacks F_SEAL_SHRINK, is
  // sealed against writing, has huge pages (see Create), or is empty or smaller than `bytes`; 0
  // means its whole size.
  static absl::StatusOr<std::unique_ptr<SealedMemory>> Attach(UniqueFd fd, uint64_t bytes);

  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;
  ~SealedMemory();

  // Keeps the first `bytes`, rounded up to the page size, and gives the rest back to the system: it
  // is unmapped, and its pages are punched out of the file, whose length the seal keeps as it is.
  // Errors leave it shrunk, and some of the rest taken. REQUIRES: nobody uses the rest; 0 < bytes
  // <= size().
  absl::Status Shrink(uint64_t bytes);

  std::span<std::byte> bytes() const { return mapping_.first(size_); }
  uint64_t size() const { return size_; }
  int fd() const { return fd_.get(); }
  bool huge_pages() const { return huge_pages_; }

 private:
  SealedMemory(UniqueFd fd, std::span<std::byte> mapping, uint64_t size, bool huge_pages);
  static absl::StatusOr<std::unique_ptr<SealedMemory>> CreateOf(const std::string& name,
                                                                uint64_t bytes, bool huge);

  UniqueFd fd_;
  std::span<std::byte> mapping_;
  uint64_t size_;
  bool huge_pages_;
};

}  // namespace kvstream::memory
