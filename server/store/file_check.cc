// FileIsDamaged: the one function of the format that reads.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "server/base/check.h"
#include "server/store/chunk_format.h"
#include "server/store/xxh3.h"

namespace kvstream::store {
namespace {

constexpr uint64_t kPieceBytes = kMiB;

struct FreeBuffer {
  void operator()(std::byte* p) const { std::free(p); }
};

// Reads exactly `into.size()` bytes.
bool ReadFully(int fd, uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t n = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    into = into.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return true;
}

bool SegmentIsWhole(int fd, const KeyDigest& key, const ChunkHeader& header, uint32_t segment,
                    std::span<std::byte> piece) {
  SeededHash hash(SegmentSeed(key, segment));
  const uint64_t bytes = header.shape.BytesOf(segment);
  const uint64_t padded = header.shape.PaddedBytesOf(segment);
  for (uint64_t at = 0; at < bytes; at += piece.size()) {
    // Whole blocks with their padding, so that a descriptor opened for direct I/O will do.
    const auto part = piece.first(std::min<uint64_t>(piece.size(), padded - at));
    if (!ReadFully(fd, header.shape.FileOffsetOf(segment) + at, part)) return false;
    hash.Update(part.data(), std::min<uint64_t>(part.size(), bytes - at));
  }
  return hash.Digest() == header.checksums[segment];
}

}  // namespace

bool FileIsDamaged(int fd, const KeyDigest& key) {
  const std::unique_ptr<std::byte, FreeBuffer> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kPayloadAlignment, kPieceBytes)));
  KV_CHECK(buffer != nullptr);
  const std::span<std::byte> piece(buffer.get(), kPieceBytes);
  struct stat file;
  if (::fstat(fd, &file) != 0 || !ReadFully(fd, 0, piece.first(kHeaderBytes))) return true;
  const absl::StatusOr<ChunkHeader> header =
      DecodeHeaderOf(key, piece.first(kHeaderBytes), static_cast<uint64_t>(file.st_size));
  if (absl::IsUnimplemented(header.status())) return false;
  if (!header.ok()) return true;
  for (uint32_t segment = 0; segment < header->shape.segments(); ++segment) {
    if (!SegmentIsWhole(fd, key, *header, segment, piece)) return true;
  }
  return false;
}

}  // namespace kvstream::store
