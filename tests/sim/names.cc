#include "tests/sim/names.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "server/base/check.h"
#include "server/store/chunk_format.h"
#include "tests/support/sim_random.h"

namespace kvstream::sim {
namespace {

constexpr uint64_t kPayloadMax = 128 * kKiB;

// The same in every run of the process, so it is made once.
const std::vector<std::byte>& Stream(uint32_t number, uint32_t version) {
  static auto* const streams = new absl::flat_hash_map<uint32_t, std::vector<std::byte>>();
  const uint32_t id = number * kVersions + version;
  std::vector<std::byte>& bytes = (*streams)[id];
  if (!bytes.empty()) return bytes;
  bytes.resize(kPayloadMax);
  SimRandom random(id);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random.Next();
    std::memcpy(&bytes[at], &word, sizeof word);
  }
  return bytes;
}

}  // namespace

Names::Names(uint32_t keys, const std::vector<uint64_t>& payload_bytes, uint64_t segment_bytes) {
  auto info = std::make_shared<store::NamespaceInfo>();
  info->spec.segment_bytes = segment_bytes;
  for (const uint64_t bytes : payload_bytes) {
    KV_CHECK(bytes >= sizeof(uint64_t) && bytes <= kPayloadMax);
    info->spec.groups.push_back({.name = "g", .chunk_bytes = bytes});
    info->local_shards.push_back({0});
  }
  info->id.bytes = {1, 2, 3};
  name_space_ = std::move(info);
  for (uint32_t number = 0; number < keys; ++number) {
    Key& key = keys_.emplace_back();
    key.key.name_space = name_space_->id;
    key.key.group = static_cast<uint32_t>(number % payload_bytes.size());
    key.key.salt = store::DigestOfSalt("");
    key.key.prefix_hash.assign(16, '\0');
    std::memcpy(key.key.prefix_hash.data(), &number, sizeof number);
    key.digest = store::DigestOfKey(key.key);
    key.path = store::ChunkPath(name_space_->id, key.digest);
    key.shape = {payload_bytes[key.key.group], segment_bytes};
    by_path_[key.path] = number;
    slot_bytes_ = std::max(slot_bytes_, key.shape.file_bytes());
  }
}

std::span<const std::byte> Names::BytesOf(uint32_t number, uint32_t version) const {
  return std::span(Stream(number, version)).first(shape(number).payload_bytes);
}

std::optional<uint32_t> Names::VersionOf(uint32_t number, std::span<const std::byte> bytes) const {
  for (uint32_t version = 0; version < kVersions; ++version) {
    const auto expected = BytesOf(number, version);
    if (bytes.size() == expected.size() &&
        std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0) {
      return version;
    }
  }
  return std::nullopt;
}

}  // namespace kvstream::sim
