// Chunks for the store's tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "server/store/namespace.h"

namespace kvstream::store {

using Block = std::array<std::byte, kHeaderBytes>;

inline ChunkKey SampleKey(uint32_t shard = 1) {
  ChunkKey key;
  key.name_space.bytes = {9, 8, 7};
  key.group = 2;
  key.shard = shard;
  key.shards = 4;
  key.salt = DigestOfSalt("tenant");
  key.prefix_hash = std::string(32, 'h');
  return key;
}

inline std::vector<std::byte> SamplePayload(uint64_t bytes) {
  std::vector<std::byte> payload(bytes);
  for (uint64_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i % 251);
  return payload;
}

inline std::span<const std::byte> SegmentOf(const ChunkShape& shape, uint32_t segment,
                                            std::span<const std::byte> payload) {
  return payload.subspan(segment * shape.segment_bytes, shape.BytesOf(segment));
}

// The header of SamplePayload under `key`.
inline ChunkHeader SampleHeader(const ChunkKey& key, const ChunkShape& shape) {
  ChunkHeader header{.encoded_key = EncodeKey(key), .shape = shape, .checksums = {}, .content = {}};
  const std::vector<std::byte> payload = SamplePayload(shape.payload_bytes);
  for (uint32_t i = 0; i < shape.segments(); ++i) {
    header.checksums.push_back(SegmentChecksum(DigestOfKey(key), i, SegmentOf(shape, i, payload)));
  }
  header.content = ContentIdOf(shape, header.checksums);
  return header;
}

inline Block EncodedBlock(const ChunkHeader& header) {
  Block block;
  EncodeHeader(header, block);
  return block;
}

// A whole file of SamplePayload under `key`.
inline std::vector<std::byte> SampleFile(const ChunkKey& key, const ChunkShape& shape) {
  std::vector<std::byte> file(shape.file_bytes());
  EncodeHeader(SampleHeader(key, shape), std::span(file).first(kHeaderBytes));
  const std::vector<std::byte> payload = SamplePayload(shape.payload_bytes);
  std::memcpy(&file[kHeaderBytes], payload.data(), payload.size());
  return file;
}

inline NamespaceLimits SampleLimits() {
  NamespaceLimits limits;
  limits.chunk_bytes_max = kGiB;
  return limits;
}

// Every field is set; already normalized.
inline NamespaceSpec SampleNamespace() {
  NamespaceSpec spec;
  spec.model = "example/model-8b";
  spec.weights_fingerprint = "rev-1";
  spec.kv_dtype = "bfloat16";
  spec.quantization = "none";
  spec.rope = "theta=10000";
  spec.layout = "block-major/L,2,T,H,D";
  spec.strides = {4096, 128, 2};
  spec.page_tokens = 16;
  spec.chunk_tokens = 256;
  spec.tensor_parallel = 4;
  spec.pipeline_parallel = 2;
  spec.context_parallel = 1;
  spec.groups = {{.name = "full", .chunk_bytes = 8 * kMiB, .shards = 4, .replicated = false},
                 {.name = "latent", .chunk_bytes = kMiB, .shards = 1, .replicated = true}};
  spec.segment_bytes = kMiB;
  spec.extra = {{"a", "1"}, {"b", "2"}};
  return spec;
}

}  // namespace kvstream::store
