// A chunk on disk: a 4 KiB header block, then the payload padded with zeros to 4 KiB. FORMAT.md is
// the specification; this is its only implementation. Stateless; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/chunk_shape.h"
#include "server/base/types.h"

namespace kvstream::store {

inline constexpr uint32_t kFormatVersion = 1;
// What fits into the header block.
inline constexpr uint32_t kSegmentsMax = 480;

// Whether a chunk may have this shape, with so many segments.
bool IsShapeOf(const ChunkShape& shape, size_t segments);

// Checksum of one segment: XXH3-64 of its payload bytes (without padding), seeded with the key's
// digest and the segment's number, so that right bytes in the wrong place fail.
uint64_t SegmentSeed(const KeyDigest& key, uint32_t segment);
uint64_t SegmentChecksum(const KeyDigest& key, uint32_t segment,
                         std::span<const std::byte> payload);

// Copies `source` to every destination and returns the checksum of what was copied, in one pass
// over the source (blocks that fit the cache are hashed and copied while hot). Destinations are as
// long as the source. With no destination it only hashes.
uint64_t CopyAndChecksum(const KeyDigest& key, uint32_t segment, std::span<const std::byte> source,
                         std::span<std::byte* const> destinations);

// The digest of shape and segment checksums.
ContentId ContentIdOf(const ChunkShape& shape, std::span<const uint64_t> checksums);

struct ChunkHeader {
  // The canonical encoding of the full key.
  std::string encoded_key;
  ChunkShape shape;
  // One for each segment.
  std::vector<uint64_t> checksums;
  ContentId content;
};

// The namespace of the header's key.
NamespaceId NamespaceOf(const ChunkHeader& header);

// Fills `block` (kHeaderBytes). The content id is computed. REQUIRES: 1 .. kSegmentsMax checksums
// that match the shape, a key that EncodeKey made.
void EncodeHeader(const ChunkHeader& header, std::span<std::byte> block);

// Parses and verifies a header block. DATA_LOSS: damaged (magic, checksum, or fields that
// contradict each other). UNIMPLEMENTED: a format version that this build does not know; such a
// file is ignored, never deleted.
absl::StatusOr<ChunkHeader> DecodeHeader(std::span<const std::byte> block);

// DecodeHeader, and the file is the one it should be: the key's digest is `key`, and the file's
// size is what the header says; DATA_LOSS otherwise.
absl::StatusOr<ChunkHeader> DecodeHeaderOf(const KeyDigest& key, std::span<const std::byte> block,
                                           uint64_t file_bytes);

// "v1/<namespace hex>/<2 hex>/<2 hex>/<key digest hex>.kv", relative to a tier's root.
std::string ChunkPath(const NamespaceId& name_space, const KeyDigest& key);
// The key of a path that is named so.
KeyDigest KeyOfPath(std::string_view path);

// Reads a whole file and verifies header and every segment; not the padding, which nobody is ever
// given. `on_blocks` gets what is read, before all of it is verified: whole blocks, aligned to
// blocks, in order; false ends the reading with CANCELLED. The header, or as DecodeHeaderOf; others
// are what the reading failed with. The descriptor may be open for direct I/O. Blocks.
absl::StatusOr<ChunkHeader> ReadChunkFile(
    int fd, const KeyDigest& key, absl::FunctionRef<bool(std::span<const std::byte>)> on_blocks);

// As ReadChunkFile: whether it is DATA_LOSS. False also for an unknown format version: not damaged,
// only not ours. An error is what the reading failed with, which says nothing of the file.
absl::StatusOr<bool> FileIsDamaged(int fd, const KeyDigest& key);

}  // namespace kvstream::store
