// How a chunk's payload is cut into segments, in memory and on disk.
#pragma once

#include <cstdint>

namespace kvstream {

// A file is one header block, then the payload padded to kPayloadAlignment.
inline constexpr uint64_t kHeaderBytes = 4096;
inline constexpr uint64_t kPayloadAlignment = 4096;

struct ChunkShape {
  uint64_t payload_bytes = 0;
  // A multiple of kPayloadAlignment.
  uint64_t segment_bytes = 0;

  uint32_t segments() const {
    return static_cast<uint32_t>((payload_bytes + segment_bytes - 1) / segment_bytes);
  }
  // Payload bytes of a segment; only the last may be short. REQUIRES: segment < segments().
  uint64_t BytesOf(uint32_t segment) const {
    const uint64_t begin = segment * segment_bytes;
    return payload_bytes - begin < segment_bytes ? payload_bytes - begin : segment_bytes;
  }
  // The same padded to kPayloadAlignment: what is read, written and held in a slot.
  uint64_t PaddedBytesOf(uint32_t segment) const {
    return (BytesOf(segment) + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
  }
  uint64_t FileOffsetOf(uint32_t segment) const { return kHeaderBytes + segment * segment_bytes; }
  uint64_t file_bytes() const {
    return kHeaderBytes +
           (payload_bytes + kPayloadAlignment - 1) / kPayloadAlignment * kPayloadAlignment;
  }
  bool operator==(const ChunkShape&) const = default;
};

}  // namespace kvstream
