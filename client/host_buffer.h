// A host buffer: memory shared with the daemon, named by its number in a session. Chunks are read
// into it and stored out of it.
//
// Thread rule: one thread at a time; the bytes are the caller's to guard.
// Ownership: move-only; unmaps at its end. That ends only this mapping: the daemon has its own
// until Client::DropHostBuffer or the session's end, so unmapping early can corrupt nothing. After
// a lost session the memory stays mapped and readable, and its number means nothing to a new
// session.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace kvstream {

class HostBuffer {
 public:
  // Maps `bytes` of `fd`, which stays the caller's. Errors: the system call's.
  static absl::StatusOr<HostBuffer> Map(int fd, uint64_t bytes, uint64_t id);

  HostBuffer() = default;
  HostBuffer(HostBuffer&& o) noexcept;
  HostBuffer& operator=(HostBuffer&& o) noexcept;
  ~HostBuffer();

  // Never 0 for a mapped buffer.
  uint64_t id() const { return id_; }
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  HostBuffer(std::byte* data, uint64_t size, uint64_t id) : data_(data), size_(size), id_(id) {}

  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t id_ = 0;
};

}  // namespace kvstream
