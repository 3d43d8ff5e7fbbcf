#include "server/store/chunk_format.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "server/base/check.h"
#include "server/store/chunk_key.h"
#include "server/store/encoding.h"
#include "server/store/stream_copy.h"
#include "server/store/xxh3.h"

namespace kvstream::store {
namespace {

// Offsets into the header block; FORMAT.md has the table.
constexpr std::string_view kMagic = "KVSTREAM";
constexpr std::string_view kFileSuffix = ".kv";
constexpr size_t kVersionAt = 8;
constexpr size_t kSegmentsAt = 12;
constexpr size_t kHeaderChecksumAt = 16;
constexpr size_t kPayloadBytesAt = 24;
constexpr size_t kSegmentBytesAt = 32;
constexpr size_t kContentAt = 40;
constexpr size_t kNamespaceAt = 56;
constexpr size_t kKeyDigestAt = 72;
constexpr size_t kKeyLengthAt = 88;
constexpr size_t kKeyAt = 92;
constexpr size_t kChecksumsAt = 256;
constexpr size_t kDigestBytes = sizeof(KeyDigest);
static_assert(kKeyAt + kEncodedKeyBytesMax <= kChecksumsAt);
static_assert(kChecksumsAt + kSegmentsMax * sizeof(uint64_t) <= kHeaderBytes);

// Of an encoded key: the length of its prefix hash, the last field but one.
constexpr size_t kPrefixHashLengthAt = kEncodedKeyBytesMax - kPrefixHashBytesMax - 1;
// Keeps the arithmetic of shapes far from overflow.
constexpr uint64_t kSegmentBytesLimit = uint64_t{1} << 40;
// What is hashed and then copied while it is still in the cache.
constexpr size_t kHotBlockBytes = 128 * kKiB;

absl::Status Damaged(std::string_view cause) {
  return absl::DataLossError("decode chunk header: " + std::string(cause));
}

uint64_t HeaderChecksum(std::span<const std::byte> block) {
  static constexpr std::byte kZero[sizeof(uint64_t)] = {};
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, block.data(), kHeaderChecksumAt);
  XXH3_64bits_update(&state, kZero, sizeof kZero);
  const size_t rest = kHeaderChecksumAt + sizeof kZero;
  XXH3_64bits_update(&state, block.data() + rest, block.size() - rest);
  return XXH3_64bits_digest(&state);
}

bool IsEncodedKey(std::string_view key) {
  if (key.size() <= kPrefixHashLengthAt) return false;
  const size_t hash_bytes = static_cast<uint8_t>(key[kPrefixHashLengthAt]);
  return hash_bytes >= kPrefixHashBytesMin && hash_bytes <= kPrefixHashBytesMax &&
         key.size() == kPrefixHashLengthAt + 1 + hash_bytes;
}

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// The identity part of a block: namespace, key digest and key must be one.
absl::Status DecodeKey(std::span<const std::byte> block, std::string* encoded_key) {
  const uint32_t length = LoadLe<uint32_t>(&block[kKeyLengthAt]);
  if (length > kEncodedKeyBytesMax) return Damaged("the key is too long");
  encoded_key->assign(reinterpret_cast<const char*>(&block[kKeyAt]), length);
  if (!IsEncodedKey(*encoded_key)) return Damaged("the key is malformed");
  if (DigestOfEncodedKey(*encoded_key) != LoadDigest<KeyTag>(&block[kKeyDigestAt])) {
    return Damaged("the key contradicts its digest");
  }
  if (std::memcmp(encoded_key->data(), &block[kNamespaceAt], kDigestBytes) != 0) {
    return Damaged("the key contradicts the namespace");
  }
  if (!IsZero(block.subspan(kKeyAt + length, kChecksumsAt - kKeyAt - length))) {
    return Damaged("reserved bytes are not zero");
  }
  return absl::OkStatus();
}

}  // namespace

bool IsShapeOf(const ChunkShape& shape, size_t segments) {
  return segments >= 1 && segments <= kSegmentsMax && shape.segment_bytes > 0 &&
         shape.segment_bytes <= kSegmentBytesLimit &&
         shape.segment_bytes % kPayloadAlignment == 0 &&
         shape.payload_bytes <= shape.segment_bytes * segments &&
         shape.payload_bytes > shape.segment_bytes * (segments - 1);
}

uint64_t SegmentSeed(const KeyDigest& key, uint32_t segment) {
  std::byte bytes[kDigestBytes + sizeof segment];
  std::memcpy(bytes, key.bytes.data(), kDigestBytes);
  StoreLe(segment, bytes + kDigestBytes);
  return XXH3_64bits(bytes, sizeof bytes);
}

uint64_t SegmentChecksum(const KeyDigest& key, uint32_t segment,
                         std::span<const std::byte> payload) {
  return XXH3_64bits_withSeed(payload.data(), payload.size(), SegmentSeed(key, segment));
}

uint64_t CopyAndChecksum(const KeyDigest& key, uint32_t segment, std::span<const std::byte> source,
                         std::span<std::byte* const> destinations) {
  if (destinations.empty()) return SegmentChecksum(key, segment, source);
  SeededHash hash(SegmentSeed(key, segment));
  for (size_t at = 0; at < source.size(); at += kHotBlockBytes) {
    const auto block = source.subspan(at, std::min(kHotBlockBytes, source.size() - at));
    hash.Update(block.data(), block.size());
    for (std::byte* destination : destinations) {
      StreamCopy(destination + at, block.data(), block.size());
    }
  }
  return hash.Digest();
}

ContentId ContentIdOf(const ChunkShape& shape, std::span<const uint64_t> checksums) {
  std::string encoded;
  encoded.reserve((2 + checksums.size()) * sizeof(uint64_t));
  AppendLe(shape.payload_bytes, &encoded);
  AppendLe(shape.segment_bytes, &encoded);
  for (uint64_t checksum : checksums) AppendLe(checksum, &encoded);
  return {Xxh3Digest(encoded)};
}

NamespaceId NamespaceOf(const ChunkHeader& header) {
  return LoadDigest<NamespaceTag>(reinterpret_cast<const std::byte*>(header.encoded_key.data()));
}

void EncodeHeader(const ChunkHeader& header, std::span<std::byte> block) {
  KV_CHECK(block.size() == kHeaderBytes);
  KV_CHECK(IsEncodedKey(header.encoded_key));
  KV_CHECK(IsShapeOf(header.shape, header.checksums.size()));
  std::memset(block.data(), 0, block.size());
  std::memcpy(block.data(), kMagic.data(), kMagic.size());
  StoreLe(kFormatVersion, &block[kVersionAt]);
  StoreLe(static_cast<uint32_t>(header.checksums.size()), &block[kSegmentsAt]);
  StoreLe(header.shape.payload_bytes, &block[kPayloadBytesAt]);
  StoreLe(header.shape.segment_bytes, &block[kSegmentBytesAt]);
  const ContentId content = ContentIdOf(header.shape, header.checksums);
  std::memcpy(&block[kContentAt], content.bytes.data(), kDigestBytes);
  std::memcpy(&block[kNamespaceAt], header.encoded_key.data(), kDigestBytes);
  const KeyDigest key = DigestOfEncodedKey(header.encoded_key);
  std::memcpy(&block[kKeyDigestAt], key.bytes.data(), kDigestBytes);
  StoreLe(static_cast<uint32_t>(header.encoded_key.size()), &block[kKeyLengthAt]);
  std::memcpy(&block[kKeyAt], header.encoded_key.data(), header.encoded_key.size());
  std::byte* at = &block[kChecksumsAt];
  for (uint64_t checksum : header.checksums) {
    StoreLe(checksum, at);
    at += sizeof checksum;
  }
  StoreLe(HeaderChecksum(block), &block[kHeaderChecksumAt]);
}

absl::StatusOr<ChunkHeader> DecodeHeader(std::span<const std::byte> block) {
  if (block.size() != kHeaderBytes) return Damaged("the block is not 4096 bytes");
  if (std::memcmp(block.data(), kMagic.data(), kMagic.size()) != 0) {
    return Damaged("not a chunk: the magic is wrong");
  }
  const uint32_t version = LoadLe<uint32_t>(&block[kVersionAt]);
  if (version != kFormatVersion) {
    return absl::UnimplementedError("decode chunk header: unknown format version " +
                                    std::to_string(version));
  }
  if (LoadLe<uint64_t>(&block[kHeaderChecksumAt]) != HeaderChecksum(block)) {
    return Damaged("the header checksum is wrong");
  }
  // The checksum keeps accidents out. What follows keeps out a writer that computes right checksums
  // over wrong fields.
  ChunkHeader header;
  absl::Status status = DecodeKey(block, &header.encoded_key);
  if (!status.ok()) return status;
  const uint32_t segments = LoadLe<uint32_t>(&block[kSegmentsAt]);
  header.shape.payload_bytes = LoadLe<uint64_t>(&block[kPayloadBytesAt]);
  header.shape.segment_bytes = LoadLe<uint64_t>(&block[kSegmentBytesAt]);
  if (!IsShapeOf(header.shape, segments)) return Damaged("the shape contradicts itself");
  header.checksums.reserve(segments);
  const std::byte* at = &block[kChecksumsAt];
  for (uint32_t i = 0; i < segments; ++i, at += sizeof(uint64_t)) {
    header.checksums.push_back(LoadLe<uint64_t>(at));
  }
  if (!IsZero(block.subspan(kChecksumsAt + segments * sizeof(uint64_t)))) {
    return Damaged("there are more checksums than segments");
  }
  header.content = ContentIdOf(header.shape, header.checksums);
  if (header.content != LoadDigest<ContentTag>(&block[kContentAt])) {
    return Damaged("the content id contradicts the checksums");
  }
  return header;
}

absl::StatusOr<ChunkHeader> DecodeHeaderOf(const KeyDigest& key, std::span<const std::byte> block,
                                           uint64_t file_bytes) {
  absl::StatusOr<ChunkHeader> header = DecodeHeader(block);
  if (!header.ok()) return header;
  if (DigestOfEncodedKey(header->encoded_key) != key) {
    return Damaged("the file holds another key's chunk");
  }
  if (header->shape.file_bytes() != file_bytes) {
    return Damaged("the file is " + std::to_string(file_bytes) + " bytes, not " +
                   std::to_string(header->shape.file_bytes()));
  }
  return header;
}

std::string ChunkPath(const NamespaceId& name_space, const KeyDigest& key) {
  const std::string name = ToHex(key);
  std::string path = "v1/" + ToHex(name_space);
  path.append("/").append(name, 0, 2).append("/").append(name, 2, 2);
  return path.append("/").append(name).append(kFileSuffix);
}

KeyDigest KeyOfPath(std::string_view path) {
  KeyDigest key;
  const std::string_view hex =
      path.substr(path.size() - kFileSuffix.size() - 2 * key.bytes.size(), 2 * key.bytes.size());
  const auto value = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (size_t i = 0; i < key.bytes.size(); ++i) {
    key.bytes[i] = static_cast<uint8_t>(value(hex[2 * i]) << 4 | value(hex[2 * i + 1]));
  }
  return key;
}

}  // namespace kvstream::store
