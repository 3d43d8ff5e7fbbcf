#include "server/store/index_snapshot.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "server/base/check.h"
#include "server/store/chunk_format.h"
#include "server/store/encoding.h"

namespace kvstream::store {
namespace {

// Offsets into the header; FORMAT.md has the table.
constexpr std::string_view kSnapshotMagic = "KVSINDEX";
constexpr uint32_t kSnapshotVersion = 1;
constexpr size_t kSnapshotVersionAt = 8;
constexpr size_t kSnapshotChecksumAt = 16;
constexpr size_t kFilesAt = 24;
constexpr size_t kFileBytesAt = 32;
constexpr size_t kSecondsAt = 40;
// What an entry of the body begins with, and its bytes behind that.
constexpr char kKindTag = 0;
constexpr char kFileTag = 1;
constexpr size_t kKindBytes = 16 + 8 + 8;
// Key, content, siblings, those before, kind, seconds.
constexpr size_t kFileBytes = 16 + 16 + 8 + 8 + 4 + 4;
constexpr size_t kKindOfFileAt = 48;

const std::byte* BytesOf(std::string_view text) {
  return reinterpret_cast<const std::byte*>(text.data());
}

absl::Status SnapshotDamaged(const char* what) {
  return absl::DataLossError(std::string("index snapshot: ") + what);
}

// Before its segments are counted.
bool IsSoundShape(const ChunkShape& shape) {
  if (shape.segment_bytes == 0 || shape.payload_bytes == 0) return false;
  return IsShapeOf(shape, (shape.payload_bytes - 1) / shape.segment_bytes + 1);
}

}  // namespace

void SnapshotWriter::Add(const OwnFile& file) {
  const ChunkFacts& chunk = file.chunk;
  KV_CHECK(IsShapeOf(chunk.shape, chunk.checksums.size()));
  const auto [kind, is_new] =
      kinds_.try_emplace({chunk.name_space, {chunk.shape.payload_bytes, chunk.shape.segment_bytes}},
                         static_cast<uint32_t>(kinds_.size()));
  if (is_new) {
    pending_ += kKindTag;
    AppendDigest(chunk.name_space, &pending_);
    AppendLe(chunk.shape.payload_bytes, &pending_);
    AppendLe(chunk.shape.segment_bytes, &pending_);
  }
  pending_ += kFileTag;
  AppendDigest(chunk.key, &pending_);
  AppendDigest(chunk.content, &pending_);
  AppendLe(chunk.siblings.value, &pending_);
  // Its own siblings stand for: not known.
  AppendLe(file.before.value_or(chunk.siblings).value, &pending_);
  AppendLe(kind->second, &pending_);
  AppendLe(file.unused_seconds, &pending_);
  for (const uint64_t checksum : chunk.checksums) AppendLe(checksum, &pending_);
  files_ += 1;
  file_bytes_ += chunk.shape.file_bytes();
}

std::string SnapshotWriter::Take() {
  hash_.Update(BytesOf(pending_), pending_.size());
  return std::exchange(pending_, {});
}

std::string SnapshotWriter::Header(uint64_t seconds) {
  KV_CHECK(pending_.empty());
  std::string header(kSnapshotHeaderBytes, '\0');
  auto* const at = reinterpret_cast<std::byte*>(header.data());
  std::memcpy(at, kSnapshotMagic.data(), kSnapshotMagic.size());
  StoreLe(kSnapshotVersion, at + kSnapshotVersionAt);
  StoreLe(files_, at + kFilesAt);
  StoreLe(file_bytes_, at + kFileBytesAt);
  StoreLe(seconds, at + kSecondsAt);
  // Of the body, and of the header as it is so far.
  hash_.Update(at, header.size());
  StoreLe(hash_.Digest(), at + kSnapshotChecksumAt);
  return header;
}

absl::StatusOr<SnapshotReader> SnapshotReader::Open(std::string file) {
  if (file.size() < kSnapshotHeaderBytes || !file.starts_with(kSnapshotMagic)) {
    return SnapshotDamaged("it does not begin as one");
  }
  auto* const header = reinterpret_cast<std::byte*>(file.data());
  if (const auto version = LoadLe<uint32_t>(header + kSnapshotVersionAt);
      version != kSnapshotVersion) {
    return absl::UnimplementedError("index snapshot: version " + std::to_string(version));
  }
  const auto checksum = LoadLe<uint64_t>(header + kSnapshotChecksumAt);
  StoreLe(uint64_t{0}, header + kSnapshotChecksumAt);
  SeededHash hash(0);
  hash.Update(header + kSnapshotHeaderBytes, file.size() - kSnapshotHeaderBytes);
  hash.Update(header, kSnapshotHeaderBytes);
  if (hash.Digest() != checksum) return SnapshotDamaged("its checksum is another");
  SnapshotReader reader(std::move(file));
  if (absl::Status scanned = reader.Scan(); !scanned.ok()) return scanned;
  return reader;
}

absl::Status SnapshotReader::Scan() {
  const std::byte* const bytes = BytesOf(file_);
  seconds_ = LoadLe<uint64_t>(bytes + kSecondsAt);
  file_bytes_ = LoadLe<uint64_t>(bytes + kFileBytesAt);
  for (size_t at = kSnapshotHeaderBytes; at < file_.size();) {
    const char tag = file_[at++];
    const size_t left = file_.size() - at;
    if (tag == kKindTag && left >= kKindBytes) {
      const Kind kind{LoadDigest<NamespaceTag>(bytes + at),
                      {LoadLe<uint64_t>(bytes + at + 16), LoadLe<uint64_t>(bytes + at + 24)}};
      if (!IsSoundShape(kind.shape)) return SnapshotDamaged("a shape that no chunk has");
      kinds_.push_back(kind);
      at += kKindBytes;
      continue;
    }
    if (tag != kFileTag || left < kFileBytes) return SnapshotDamaged("an entry that is none");
    const auto kind = LoadLe<uint32_t>(bytes + at + kKindOfFileAt);
    if (kind >= kinds_.size()) return SnapshotDamaged("a file of no kind");
    const size_t entry = kFileBytes + kinds_[kind].shape.segments() * sizeof(uint64_t);
    if (left < entry) return SnapshotDamaged("an entry that is none");
    at_.push_back(at);
    at += entry;
  }
  if (at_.size() != LoadLe<uint64_t>(bytes + kFilesAt)) return SnapshotDamaged("files are missing");
  return absl::OkStatus();
}

void SnapshotReader::ForEach(absl::FunctionRef<bool(const OwnFile& file)> visit) const {
  std::vector<uint64_t> checksums;
  for (size_t i = at_.size(); i > 0; --i) {
    const std::byte* const at = BytesOf(file_) + at_[i - 1];
    const Kind& kind = kinds_[LoadLe<uint32_t>(at + kKindOfFileAt)];
    checksums.resize(kind.shape.segments());
    for (size_t s = 0; s < checksums.size(); ++s) {
      checksums[s] = LoadLe<uint64_t>(at + kFileBytes + s * sizeof(uint64_t));
    }
    OwnFile file{{LoadDigest<KeyTag>(at),
                  {LoadLe<uint64_t>(at + 32)},
                  kind.name_space,
                  kind.shape,
                  LoadDigest<ContentTag>(at + 16),
                  checksums},
                 std::nullopt,
                 LoadLe<uint32_t>(at + 52)};
    const SiblingsId before{LoadLe<uint64_t>(at + 40)};
    if (before != file.chunk.siblings) file.before = before;
    if (!visit(file)) return;
  }
}

}  // namespace kvstream::store
