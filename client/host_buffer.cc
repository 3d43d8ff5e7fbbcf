#include "client/host_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

#include "client/status_convert.h"

namespace kvstream {

absl::StatusOr<HostBuffer> HostBuffer::Map(int fd, uint64_t bytes, uint64_t id) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return FromErrno(errno, "map", "host buffer of " + std::to_string(bytes) + " bytes");
  }
  return HostBuffer(static_cast<std::byte*>(data), bytes, id);
}

HostBuffer::HostBuffer(HostBuffer&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)),
      size_(std::exchange(o.size_, 0)),
      id_(std::exchange(o.id_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(id_, o.id_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace kvstream
