#include "server/memory/sealed_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string_view>
#include <utility>

#include "server/base/check.h"
#include "server/base/errno_status.h"
#include "server/base/types.h"

namespace kvstream::memory {
namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;
// off_t is signed, and a size is rounded up to a huge page.
constexpr uint64_t kBytesMax = std::numeric_limits<int64_t>::max() - kHugePageBytes;

absl::Status Refused(const std::string& cause) {
  return absl::InvalidArgumentError("attach memory: " + cause);
}

uint64_t RoundUp(uint64_t bytes, uint64_t page) { return (bytes + page - 1) / page * page; }

absl::StatusOr<std::byte*> Map(int fd, uint64_t bytes, std::string_view name) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "map memory", name);
  return static_cast<std::byte*>(data);
}

// A sealed memfd of `bytes`, a multiple of its page size. Huge pages are allocated here: one that
// is missing later would be a SIGBUS at first touch. Ordinary pages come at first touch, or when
// the memory is pinned; one that is missing then means that the machine is out of memory.
absl::StatusOr<UniqueFd> MakeSealed(const std::string& name, uint64_t bytes, bool huge) {
  const unsigned huge_flags = huge ? unsigned{MFD_HUGETLB} | unsigned{MFD_HUGE_2MB} : 0u;
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | huge_flags));
  if (!fd.valid()) return ErrnoStatus(errno, "create memory", name);
  const auto size = static_cast<off_t>(bytes);
  if (::ftruncate(fd.get(), size) != 0) return ErrnoStatus(errno, "size memory", name);
  if (huge && ::fallocate(fd.get(), 0, 0, size) != 0) {
    return ErrnoStatus(errno, "allocate memory", name);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "seal memory", name);
  }
  return fd;
}

// The seals first: once shrinking is sealed, the size that is read next can only grow.
absl::Status CheckSeals(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    return errno == EINVAL ? Refused("the descriptor is not a memfd")
                           : ErrnoStatus(errno, "attach memory", "seals");
  }
  if ((seals & F_SEAL_SHRINK) == 0) return Refused("the memfd is not sealed against shrinking");
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return Refused("the memfd is sealed against writing");
  }
  return absl::OkStatus();
}

}  // namespace

SealedMemory::SealedMemory(UniqueFd fd, std::span<std::byte> mapping, uint64_t size,
                           bool huge_pages)
    : fd_(std::move(fd)), mapping_(mapping), size_(size), huge_pages_(huge_pages) {}

SealedMemory::~SealedMemory() { KV_CHECK(::munmap(mapping_.data(), mapping_.size()) == 0); }

absl::StatusOr<std::unique_ptr<SealedMemory>> SealedMemory::Create(const std::string& name,
                                                                   uint64_t bytes,
                                                                   bool huge_pages) {
  if (bytes == 0) return absl::InvalidArgumentError("create memory " + name + ": 0 bytes");
  if (bytes > kBytesMax) {
    return absl::ResourceExhaustedError("create memory " + name + ": " + std::to_string(bytes) +
                                        " bytes are more than a file can have");
  }
  if (huge_pages) {
    auto memory = CreateOf(name, RoundUp(bytes, kHugePageBytes), true);
    if (memory.ok()) return memory;
  }
  return CreateOf(name, RoundUp(bytes, static_cast<uint64_t>(::sysconf(_SC_PAGESIZE))), false);
}

absl::StatusOr<std::unique_ptr<SealedMemory>> SealedMemory::CreateOf(const std::string& name,
                                                                     uint64_t bytes, bool huge) {
  absl::StatusOr<UniqueFd> fd = MakeSealed(name, bytes, huge);
  if (!fd.ok()) return fd.status();
  const absl::StatusOr<std::byte*> data = Map(fd->get(), bytes, name);
  if (!data.ok()) return data.status();
  return std::unique_ptr<SealedMemory>(
      new SealedMemory(*std::move(fd), {*data, bytes}, bytes, huge));
}

absl::Status SealedMemory::Shrink(uint64_t bytes) {
  KV_CHECK(bytes > 0 && bytes <= size_);
  const auto page = huge_pages_ ? kHugePageBytes : static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t kept = std::min(RoundUp(bytes, page), size_);
  const std::span<std::byte> rest = mapping_.subspan(kept);
  if (rest.empty()) return absl::OkStatus();
  KV_CHECK(::munmap(rest.data(), rest.size()) == 0);
  mapping_ = mapping_.first(kept);
  size_ = kept;
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(kept),
                  static_cast<off_t>(rest.size())) != 0) {
    return ErrnoStatus(errno, "shrink memory", std::to_string(kept) + " bytes");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SealedMemory>> SealedMemory::Attach(UniqueFd fd, uint64_t bytes) {
  const absl::Status seals = CheckSeals(fd.get());
  if (!seals.ok()) return seals;
  struct stat file;
  struct statfs file_system;
  if (::fstat(fd.get(), &file) != 0 || ::fstatfs(fd.get(), &file_system) != 0) {
    return ErrnoStatus(errno, "attach memory", "size");
  }
  // The seals do not keep a peer from punching a hole, and a hole in huge pages is a SIGBUS where
  // no huge page is free; in ordinary pages it reads as zeros.
  if (file_system.f_type == HUGETLBFS_MAGIC) return Refused("the memfd has huge pages");
  const auto file_bytes = static_cast<uint64_t>(file.st_size);
  if (file_bytes == 0) return Refused("the memfd is empty");
  if (file_bytes < bytes) {
    return Refused("the memfd is " + std::to_string(file_bytes) + " bytes, less than " +
                   std::to_string(bytes));
  }
  // No more than is wanted: a sparse file of any size costs its owner nothing.
  const uint64_t wanted = bytes == 0 ? file_bytes : bytes;
  const absl::StatusOr<std::byte*> data = Map(fd.get(), wanted, "of a peer");
  if (!data.ok()) return data.status();
  return std::unique_ptr<SealedMemory>(
      new SealedMemory(std::move(fd), {*data, wanted}, wanted, false));
}

}  // namespace kvstream::memory
