// The chunks of a simulation: their keys, shapes and bytes. The bytes are a function of the key's
// number and of a version (equal keys need not have equal bytes), so whoever gets some can tell
// whether they are right, whole, and of one version.
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/base/chunk_shape.h"
#include "server/base/types.h"
#include "server/store/chunk_key.h"
#include "server/store/namespace.h"

namespace kvstream::sim {

inline constexpr uint32_t kVersions = 4;

class Names {
 public:
  // One group for each payload size; key number k is of group k modulo their number.
  Names(uint32_t keys, const std::vector<uint64_t>& payload_bytes, uint64_t segment_bytes);

  uint32_t keys() const { return static_cast<uint32_t>(keys_.size()); }
  const store::NamespaceRef& name_space() const { return name_space_; }
  const store::ChunkKey& key(uint32_t number) const { return keys_[number].key; }
  const KeyDigest& digest(uint32_t number) const { return keys_[number].digest; }
  const std::string& path(uint32_t number) const { return keys_[number].path; }
  const ChunkShape& shape(uint32_t number) const { return keys_[number].shape; }
  uint32_t NumberOf(const std::string& path) const { return by_path_.at(path); }
  // Of the largest chunk, padded.
  uint64_t slot_bytes() const { return slot_bytes_; }

  // The payload of a key in a version.
  std::span<const std::byte> BytesOf(uint32_t number, uint32_t version) const;
  // Which version these bytes are, if any.
  std::optional<uint32_t> VersionOf(uint32_t number, std::span<const std::byte> bytes) const;

  // Somebody has stored this version.
  void NoteStored(uint32_t number, uint32_t version) { keys_[number].stored |= 1u << version; }
  bool WasStored(uint32_t number, uint32_t version) const {
    return (keys_[number].stored >> version) & 1u;
  }

 private:
  struct Key {
    store::ChunkKey key;
    KeyDigest digest;
    std::string path;
    ChunkShape shape;
    uint32_t stored = 0;  // Versions, as bits.
  };

  store::NamespaceRef name_space_;
  std::vector<Key> keys_;
  absl::flat_hash_map<std::string, uint32_t> by_path_;
  uint64_t slot_bytes_ = 0;
};

}  // namespace kvstream::sim
