#include "server/store/catalog_log.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "server/base/check.h"
#include "server/store/chunk_format.h"
#include "server/store/encoding.h"
#include "server/store/xxh3.h"

namespace kvstream::store {
namespace {

// Offsets into a log's header and into a frame's; FORMAT.md has the tables.
constexpr std::string_view kCatalogMagic = "KVSCATLG";
constexpr uint32_t kCatalogVersion = 1;
constexpr size_t kCatalogVersionAt = 8;
constexpr size_t kCatalogChecksumAt = 16;
constexpr size_t kWriterAt = 24;
constexpr size_t kNumberAt = 40;
constexpr std::string_view kFrameMagic = "KVSF";
constexpr size_t kFrameBodyBytesAt = 4;
constexpr size_t kFrameChecksumAt = 8;
constexpr size_t kFrameNodeAt = 16;
// What an entry begins with, and its bytes behind that.
constexpr char kKindEntry = 0;
constexpr char kFileEntry = 1;
constexpr char kGoneEntry = 2;
constexpr char kUsedEntry = 3;
constexpr size_t kKindEntryBytes = 16 + 8 + 8;
// Key, content, siblings, those before, kind.
constexpr size_t kFileEntryBytes = 16 + 16 + 8 + 8 + 4;
constexpr size_t kGoneEntryBytes = 16;
constexpr size_t kUsedEntryBytes = 8;

const std::byte* BytesAt(std::string_view text, size_t at) {
  return reinterpret_cast<const std::byte*>(text.data()) + at;
}

uint64_t ChecksumOf(std::string_view bytes) {
  SeededHash hash(0);
  hash.Update(BytesAt(bytes, 0), bytes.size());
  return hash.Digest();
}

struct EntryKind {
  NamespaceId name_space;
  ChunkShape shape;
};

// Goes through the entries of a body that has its checksum; false where one is none.
class BodyReader {
 public:
  explicit BodyReader(std::string_view body) : body_(body) {}

  bool ForEach(absl::FunctionRef<void(const CatalogEntry&)> visit) {
    while (at_ < body_.size()) {
      const char tag = body_[at_++];
      const size_t left = body_.size() - at_;
      bool ok = false;
      if (tag == kKindEntry && left >= kKindEntryBytes) {
        ok = ReadKind();
      } else if (tag == kFileEntry && left >= kFileEntryBytes) {
        ok = ReadFile(visit);
      } else if (tag == kGoneEntry && left >= kGoneEntryBytes) {
        CatalogEntry entry{.what = CatalogEntry::What::kGone, .chunk = {}, .before = {}};
        entry.chunk.key = LoadDigest<KeyTag>(BytesAt(body_, at_));
        at_ += kGoneEntryBytes;
        visit(entry);
        ok = true;
      } else if (tag == kUsedEntry && left >= kUsedEntryBytes) {
        CatalogEntry entry{.what = CatalogEntry::What::kUsed, .chunk = {}, .before = {}};
        entry.chunk.siblings = {LoadLe<uint64_t>(BytesAt(body_, at_))};
        at_ += kUsedEntryBytes;
        visit(entry);
        ok = true;
      }
      if (!ok) return false;
    }
    return true;
  }

 private:
  bool ReadKind() {
    const EntryKind kind{
        LoadDigest<NamespaceTag>(BytesAt(body_, at_)),
        {LoadLe<uint64_t>(BytesAt(body_, at_ + 16)), LoadLe<uint64_t>(BytesAt(body_, at_ + 24))}};
    const ChunkShape& shape = kind.shape;
    if (shape.segment_bytes == 0 || shape.payload_bytes == 0) return false;
    if (!IsShapeOf(shape, (shape.payload_bytes - 1) / shape.segment_bytes + 1)) return false;
    kinds_.push_back(kind);
    at_ += kKindEntryBytes;
    return true;
  }

  bool ReadFile(absl::FunctionRef<void(const CatalogEntry&)> visit) {
    const std::byte* const file = BytesAt(body_, at_);
    const auto number = LoadLe<uint32_t>(file + 48);
    if (number >= kinds_.size()) return false;
    const EntryKind& kind = kinds_[number];
    const size_t segments = kind.shape.segments();
    const size_t entry_bytes = kFileEntryBytes + segments * sizeof(uint64_t);
    if (body_.size() - at_ < entry_bytes) return false;
    checksums_.resize(segments);
    for (size_t s = 0; s < segments; ++s) {
      checksums_[s] = LoadLe<uint64_t>(file + kFileEntryBytes + s * sizeof(uint64_t));
    }
    CatalogEntry entry{.what = CatalogEntry::What::kFile,
                       .chunk = {LoadDigest<KeyTag>(file),
                                 {LoadLe<uint64_t>(file + 32)},
                                 kind.name_space,
                                 kind.shape,
                                 LoadDigest<ContentTag>(file + 16),
                                 checksums_},
                       .before = {}};
    const SiblingsId before{LoadLe<uint64_t>(file + 40)};
    if (before != entry.chunk.siblings) entry.before = before;
    at_ += entry_bytes;
    visit(entry);
    return true;
  }

  const std::string_view body_;
  size_t at_ = 0;
  std::vector<EntryKind> kinds_;
  std::vector<uint64_t> checksums_;
};

}  // namespace

std::string EncodeCatalogHeader(const CatalogHeader& header) {
  std::string bytes(kCatalogHeaderBytes, '\0');
  auto* const at = reinterpret_cast<std::byte*>(bytes.data());
  std::memcpy(at, kCatalogMagic.data(), kCatalogMagic.size());
  StoreLe(kCatalogVersion, at + kCatalogVersionAt);
  std::memcpy(at + kWriterAt, header.writer.bytes.data(), header.writer.bytes.size());
  StoreLe(header.number, at + kNumberAt);
  StoreLe(ChecksumOf(bytes), at + kCatalogChecksumAt);
  return bytes;
}

absl::StatusOr<CatalogHeader> DecodeCatalogHeader(std::string_view bytes) {
  if (bytes.size() < kCatalogHeaderBytes || !bytes.starts_with(kCatalogMagic)) {
    return absl::DataLossError("catalog: it does not begin as one");
  }
  std::string header(bytes.substr(0, kCatalogHeaderBytes));
  auto* const at = reinterpret_cast<std::byte*>(header.data());
  if (const auto version = LoadLe<uint32_t>(at + kCatalogVersionAt); version != kCatalogVersion) {
    return absl::UnimplementedError("catalog: version " + std::to_string(version));
  }
  const auto checksum = LoadLe<uint64_t>(at + kCatalogChecksumAt);
  StoreLe(uint64_t{0}, at + kCatalogChecksumAt);
  if (ChecksumOf(header) != checksum) return absl::DataLossError("catalog: its header is damaged");
  return CatalogHeader{LoadDigest<NodeTag>(at + kWriterAt), LoadLe<uint64_t>(at + kNumberAt)};
}

uint32_t CatalogFrame::KindOf(const ChunkFacts& chunk) {
  const auto [kind, is_new] =
      kinds_.try_emplace({chunk.name_space, {chunk.shape.payload_bytes, chunk.shape.segment_bytes}},
                         static_cast<uint32_t>(kinds_.size()));
  if (is_new) {
    body_ += kKindEntry;
    AppendDigest(chunk.name_space, &body_);
    AppendLe(chunk.shape.payload_bytes, &body_);
    AppendLe(chunk.shape.segment_bytes, &body_);
  }
  return kind->second;
}

void CatalogFrame::Add(const CatalogEntry& entry) {
  KV_CHECK(!full());
  const ChunkFacts& chunk = entry.chunk;
  switch (entry.what) {
    case CatalogEntry::What::kFile: {
      KV_CHECK(IsShapeOf(chunk.shape, chunk.checksums.size()));
      const uint32_t kind = KindOf(chunk);
      body_ += kFileEntry;
      AppendDigest(chunk.key, &body_);
      AppendDigest(chunk.content, &body_);
      AppendLe(chunk.siblings.value, &body_);
      // Its own siblings stand for: not known.
      AppendLe(entry.before.value_or(chunk.siblings).value, &body_);
      AppendLe(kind, &body_);
      for (const uint64_t checksum : chunk.checksums) AppendLe(checksum, &body_);
      break;
    }
    case CatalogEntry::What::kGone:
      body_ += kGoneEntry;
      AppendDigest(chunk.key, &body_);
      break;
    case CatalogEntry::What::kUsed:
      body_ += kUsedEntry;
      AppendLe(chunk.siblings.value, &body_);
      break;
  }
}

std::string CatalogFrame::Take(const NodeId& node) {
  std::string frame(kFrameMagic);
  AppendLe(static_cast<uint32_t>(body_.size()), &frame);
  AppendLe(uint64_t{0}, &frame);
  AppendDigest(node, &frame);
  frame += body_;
  StoreLe(ChecksumOf(frame), reinterpret_cast<std::byte*>(frame.data()) + kFrameChecksumAt);
  body_.clear();
  kinds_.clear();
  return frame;
}

FrameSeen CheckFrame(std::string_view log) {
  FrameSeen seen;
  if (log.size() < kFrameHeaderBytes) return seen;
  const size_t bytes = kFrameHeaderBytes + LoadLe<uint32_t>(BytesAt(log, kFrameBodyBytesAt));
  seen.state = FrameState::kDamaged;
  if (!log.starts_with(kFrameMagic) || bytes > kFrameBytesMax) return seen;
  if (log.size() < bytes) return {};
  std::string frame(log.substr(0, bytes));
  auto* const at = reinterpret_cast<std::byte*>(frame.data());
  const auto checksum = LoadLe<uint64_t>(at + kFrameChecksumAt);
  StoreLe(uint64_t{0}, at + kFrameChecksumAt);
  const bool whole =
      ChecksumOf(frame) == checksum && BodyReader(std::string_view(frame).substr(kFrameHeaderBytes))
                                           .ForEach([](const CatalogEntry&) {});
  if (whole) {
    seen = {FrameState::kWhole, LoadDigest<NodeTag>(BytesAt(log, kFrameNodeAt)), bytes};
  }
  return seen;
}

size_t BytesToNextFrame(std::string_view log) {
  const size_t next = log.find(kFrameMagic, 1);
  if (next != std::string_view::npos) return next;
  // It may begin in the last bytes.
  return std::max<size_t>(log.size(), kFrameMagic.size()) - (kFrameMagic.size() - 1);
}

void ForEachEntry(std::string_view frame,
                  absl::FunctionRef<void(const CatalogEntry& entry)> visit) {
  KV_CHECK(BodyReader(frame.substr(kFrameHeaderBytes)).ForEach(visit));
}

size_t ReadLiveFiles(std::string_view log,
                     absl::FunctionRef<bool(const CatalogEntry& file)> visit) {
  std::vector<std::string_view> frames;
  size_t whole = 0;
  for (size_t at = 0; at < log.size();) {
    const FrameSeen seen = CheckFrame(log.substr(at));
    if (seen.state == FrameState::kWhole) {
      frames.push_back(log.substr(at, seen.bytes));
      whole = at + seen.bytes;
      at = whole;
    } else {
      // What looks unfinished may have a damaged length, and others behind it.
      at += BytesToNextFrame(log.substr(at));
    }
  }
  // By the number of the entry that counts of each key.
  absl::flat_hash_map<KeyDigest, uint64_t> live;
  uint64_t number = 0;
  for (const std::string_view frame : frames) {
    ForEachEntry(frame, [&](const CatalogEntry& entry) {
      number += 1;
      if (entry.what == CatalogEntry::What::kFile) live[entry.chunk.key] = number;
      if (entry.what == CatalogEntry::What::kGone) live.erase(entry.chunk.key);
    });
  }
  number = 0;
  bool more = true;
  for (const std::string_view frame : frames) {
    if (!more) break;
    ForEachEntry(frame, [&](const CatalogEntry& entry) {
      number += 1;
      if (!more || entry.what != CatalogEntry::What::kFile) return;
      const auto counts = live.find(entry.chunk.key);
      if (counts != live.end() && counts->second == number) more = visit(entry);
    });
  }
  return whole;
}

}  // namespace kvstream::store
