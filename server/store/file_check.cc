// Chunk files read whole: the one part of the format that reads.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>

#include "server/base/check.h"
#include "server/base/errno_status.h"
#include "server/store/chunk_format.h"
#include "server/store/xxh3.h"

namespace kvstream::store {
namespace {

constexpr uint64_t kPieceBytes = kMiB;

struct FreeBuffer {
  void operator()(std::byte* p) const { std::free(p); }
};

using OnBlocks = absl::FunctionRef<bool(std::span<const std::byte>)>;

// Reads exactly `into.size()` bytes.
absl::Status ReadFully(int fd, uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t n = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", "chunk file");
    if (n == 0) return absl::DataLossError("read chunk file: it ended early");
    into = into.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

absl::Status ReadBlocks(int fd, uint64_t offset, std::span<std::byte> into, OnBlocks on_blocks) {
  absl::Status status = ReadFully(fd, offset, into);
  if (status.ok() && !on_blocks(into)) status = absl::CancelledError("read chunk file: given up");
  return status;
}

absl::Status ReadSegment(int fd, const KeyDigest& key, const ChunkHeader& header, uint32_t segment,
                         std::span<std::byte> piece, OnBlocks on_blocks) {
  SeededHash hash(SegmentSeed(key, segment));
  const uint64_t bytes = header.shape.BytesOf(segment);
  const uint64_t padded = header.shape.PaddedBytesOf(segment);
  for (uint64_t at = 0; at < bytes; at += piece.size()) {
    // Whole blocks with their padding, so that a descriptor opened for direct I/O will do.
    const auto part = piece.first(std::min<uint64_t>(piece.size(), padded - at));
    auto status = ReadBlocks(fd, header.shape.FileOffsetOf(segment) + at, part, on_blocks);
    if (!status.ok()) return status;
    hash.Update(part.data(), std::min<uint64_t>(part.size(), bytes - at));
  }
  if (hash.Digest() == header.checksums[segment]) return absl::OkStatus();
  return absl::DataLossError("read chunk file: the checksum of segment " + std::to_string(segment) +
                             " is wrong");
}

}  // namespace

absl::StatusOr<ChunkHeader> ReadChunkFile(int fd, const KeyDigest& key, OnBlocks on_blocks) {
  const std::unique_ptr<std::byte, FreeBuffer> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kPayloadAlignment, kPieceBytes)));
  KV_CHECK(buffer != nullptr);
  const std::span<std::byte> piece(buffer.get(), kPieceBytes);
  struct stat file;
  if (::fstat(fd, &file) != 0) return ErrnoStatus(errno, "stat", "chunk file");
  const auto file_bytes = static_cast<uint64_t>(file.st_size);
  // Read by direct I/O, its end would be an error of alignment.
  if (file_bytes < kHeaderBytes) return absl::DataLossError("read chunk file: it has no header");
  auto status = ReadBlocks(fd, 0, piece.first(kHeaderBytes), on_blocks);
  if (!status.ok()) return status;
  absl::StatusOr<ChunkHeader> header = DecodeHeaderOf(key, piece.first(kHeaderBytes), file_bytes);
  if (!header.ok()) return header;
  for (uint32_t segment = 0; segment < header->shape.segments(); ++segment) {
    status = ReadSegment(fd, key, *header, segment, piece, on_blocks);
    if (!status.ok()) return status;
  }
  return header;
}

absl::StatusOr<bool> FileIsDamaged(int fd, const KeyDigest& key) {
  absl::Status status =
      ReadChunkFile(fd, key, [](std::span<const std::byte>) { return true; }).status();
  if (status.ok() || absl::IsUnimplemented(status)) return false;
  if (absl::IsDataLoss(status)) return true;
  return status;
}

}  // namespace kvstream::store
