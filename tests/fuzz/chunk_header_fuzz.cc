// The header block of a chunk's file. Any block is either refused, or encodes back to the same
// bytes and describes exactly the bytes of its file. Each input is tried as it is, and again with
// its checksums and digests made right: random bytes would never get past those.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/check.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "server/store/encoding.h"
#include "server/store/xxh3.h"

namespace kvstream::store {
namespace {

using Block = std::array<std::byte, kHeaderBytes>;

void CheckShape(const ChunkShape& shape, size_t segments) {
  KV_CHECK(segments >= 1 && segments <= kSegmentsMax && shape.segments() == segments);
  KV_CHECK(shape.segment_bytes % kPayloadAlignment == 0);
  uint64_t file_end = kHeaderBytes;
  uint64_t payload_end = 0;
  for (uint32_t segment = 0; segment < segments; ++segment) {
    KV_CHECK(shape.FileOffsetOf(segment) == file_end);
    KV_CHECK(shape.BytesOf(segment) > 0 && shape.BytesOf(segment) <= shape.segment_bytes);
    payload_end += shape.BytesOf(segment);
    file_end += shape.PaddedBytesOf(segment);
  }
  KV_CHECK(payload_end == shape.payload_bytes && file_end == shape.file_bytes());
}

void CheckBlock(std::span<const std::byte> block) {
  const auto header = DecodeHeader(block);
  if (!header.ok()) {
    KV_CHECK(absl::IsDataLoss(header.status()) || absl::IsUnimplemented(header.status()));
    return;
  }
  CheckShape(header->shape, header->checksums.size());
  Block again;
  EncodeHeader(*header, again);
  KV_CHECK(std::equal(block.begin(), block.end(), again.begin(), again.end()));

  const uint64_t bytes = header->shape.file_bytes();
  KeyDigest key = DigestOfEncodedKey(header->encoded_key);
  KV_CHECK(DecodeHeaderOf(key, block, bytes).ok());
  KV_CHECK(absl::IsDataLoss(DecodeHeaderOf(key, block, bytes - 1).status()));
  KV_CHECK(absl::IsDataLoss(DecodeHeaderOf(key, block, bytes + kPayloadAlignment).status()));
  ++key.bytes[0];
  KV_CHECK(absl::IsDataLoss(DecodeHeaderOf(key, block, bytes).status()));
}

// Offsets of FORMAT.md's table, on their own: the fuzzer's and the code's must agree.
void MakeRight(Block& block) {
  std::memcpy(block.data(), "KVSTREAM", 8);
  StoreLe(uint32_t{1}, &block[8]);
  const auto key_bytes = std::min<uint32_t>(LoadLe<uint32_t>(&block[88]), kEncodedKeyBytesMax);
  const std::string_view key(reinterpret_cast<const char*>(&block[92]), key_bytes);
  std::memcpy(&block[56], key.data(), std::min<size_t>(key.size(), 16));
  const KeyDigest digest = DigestOfEncodedKey(key);
  std::memcpy(&block[72], digest.bytes.data(), digest.bytes.size());

  std::vector<uint64_t> checksums(std::min(LoadLe<uint32_t>(&block[12]), kSegmentsMax));
  for (size_t i = 0; i < checksums.size(); ++i) {
    checksums[i] = LoadLe<uint64_t>(&block[256 + i * sizeof(uint64_t)]);
  }
  const ContentId content =
      ContentIdOf({LoadLe<uint64_t>(&block[24]), LoadLe<uint64_t>(&block[32])}, checksums);
  std::memcpy(&block[40], content.bytes.data(), content.bytes.size());

  StoreLe(uint64_t{0}, &block[16]);
  StoreLe(uint64_t{XXH3_64bits(block.data(), block.size())}, &block[16]);
}

}  // namespace
}  // namespace kvstream::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstream;
  store::CheckBlock(std::as_bytes(std::span(data, size)));
  store::Block block{};
  std::memcpy(block.data(), data, std::min(size, block.size()));
  store::CheckBlock(block);
  store::MakeRight(block);
  store::CheckBlock(block);
  return 0;
}
