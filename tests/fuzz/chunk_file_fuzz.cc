// FileIsDamaged. The input is a file as it is, which must be judged as a model of FORMAT.md judges
// it; and it describes a sound file with one change, which must be found unless it is in the
// padding.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "server/base/check.h"
#include "server/base/unique_fd.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "tests/fuzz/input.h"

namespace kvstream::store {
namespace {

constexpr uint64_t kPayloadBytesMax = 5 * kPayloadAlignment;

bool IsDamaged(std::span<const std::byte> bytes, const KeyDigest& key) {
  static const UniqueFd file(memfd_create("kvstream-fuzz", MFD_CLOEXEC));
  KV_CHECK(file.valid() && ftruncate(file.get(), 0) == 0);
  KV_CHECK(pwrite(file.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return FileIsDamaged(file.get(), key).value();
}

bool IsDamagedByTheBook(std::span<const std::byte> bytes, const KeyDigest& key) {
  if (bytes.size() < kHeaderBytes) return true;
  const auto header = DecodeHeaderOf(key, bytes.first(kHeaderBytes), bytes.size());
  if (!header.ok()) return !absl::IsUnimplemented(header.status());
  for (uint32_t i = 0; i < header->shape.segments(); ++i) {
    const auto segment = bytes.subspan(header->shape.FileOffsetOf(i), header->shape.BytesOf(i));
    if (SegmentChecksum(key, i, segment) != header->checksums[i]) return true;
  }
  return false;
}

void CheckAsItIs(std::span<const std::byte> bytes) {
  KeyDigest key;
  if (bytes.size() >= kHeaderBytes) std::memcpy(key.bytes.data(), &bytes[72], key.bytes.size());
  KV_CHECK(IsDamaged(bytes, key) == IsDamagedByTheBook(bytes, key));
}

struct SoundFile {
  KeyDigest key;
  ChunkShape shape;
  std::vector<std::byte> bytes;
};

SoundFile MakeFile(fuzz::Input& input) {
  SoundFile file;
  file.shape.payload_bytes = 1 + input.Take<uint16_t>() % kPayloadBytesMax;
  file.shape.segment_bytes = (1 + input.Below(4)) * kPayloadAlignment;
  ChunkKey key;
  key.shard = input.Take<uint8_t>();
  key.prefix_hash = std::string(kPrefixHashBytesMin + input.Below(49), 'h');
  file.key = DigestOfKey(key);
  file.bytes.resize(file.shape.file_bytes());
  const std::string payload = input.Bytes(file.shape.payload_bytes);
  std::memcpy(&file.bytes[kHeaderBytes], payload.data(), payload.size());

  ChunkHeader header{
      .encoded_key = EncodeKey(key), .shape = file.shape, .checksums = {}, .content = {}};
  for (uint32_t i = 0; i < file.shape.segments(); ++i) {
    const auto segment =
        std::span(file.bytes).subspan(file.shape.FileOffsetOf(i), file.shape.BytesOf(i));
    header.checksums.push_back(SegmentChecksum(file.key, i, segment));
  }
  EncodeHeader(header, std::span(file.bytes).first(kHeaderBytes));
  return file;
}

void CheckChanged(fuzz::Input input) {
  const uint32_t change = input.Below(4);
  const uint32_t at = input.Take<uint16_t>();
  const auto mask = static_cast<std::byte>(input.Take<uint8_t>());
  SoundFile file = MakeFile(input);
  KV_CHECK(!IsDamaged(file.bytes, file.key));

  const size_t size = file.bytes.size();
  if (change == 0) {
    file.bytes.resize(at % size);
    KV_CHECK(IsDamaged(file.bytes, file.key));
  } else if (change == 1) {
    file.bytes.resize(size + 1 + at);
    KV_CHECK(IsDamaged(file.bytes, file.key));
  } else {
    file.bytes[at % size] ^= mask;
    // A version that this build does not know is no damage.
    const bool version = at % size >= 8 && at % size < 12;
    const bool padding = at % size >= kHeaderBytes + file.shape.payload_bytes;
    KV_CHECK(IsDamaged(file.bytes, file.key) == (mask != std::byte{0} && !version && !padding));
    ++file.key.bytes[0];
    KV_CHECK(IsDamaged(file.bytes, file.key) == !(version && mask != std::byte{0}));
  }
}

}  // namespace
}  // namespace kvstream::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstream;
  store::CheckAsItIs(std::as_bytes(std::span(data, size)));
  store::CheckChanged(fuzz::Input(data, size));
  return 0;
}
