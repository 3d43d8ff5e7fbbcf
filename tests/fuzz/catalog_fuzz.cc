// A log of a shared tier's catalog, which other nodes write: the input as the entries of a frame
// that has the right length and checksum, and as a log as it is. What is whole has shapes that
// chunks can have, and said again in a frame of our own it is the same.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "server/base/check.h"
#include "server/store/catalog_log.h"
#include "server/store/chunk_format.h"
#include "server/store/encoding.h"
#include "server/store/xxh3.h"

namespace kvstream::store {
namespace {

using What = CatalogEntry::What;

std::string FrameOf(std::string_view body) {
  std::string frame = "KVSF";
  AppendLe(static_cast<uint32_t>(body.size()), &frame);
  AppendLe(uint64_t{0}, &frame);
  frame.append(16, 'n');
  frame += body;
  SeededHash hash(0);
  hash.Update(reinterpret_cast<const std::byte*>(frame.data()), frame.size());
  StoreLe(hash.Digest(), reinterpret_cast<std::byte*>(frame.data()) + 8);
  return frame;
}

void ExpectSame(const CatalogEntry& a, const CatalogEntry& b) {
  KV_CHECK(a.what == b.what);
  if (a.what != What::kUsed) KV_CHECK(a.chunk.key == b.chunk.key);
  if (a.what != What::kGone) KV_CHECK(a.chunk.siblings == b.chunk.siblings);
  if (a.what != What::kFile) return;
  KV_CHECK(a.before == b.before && a.chunk.name_space == b.chunk.name_space &&
           a.chunk.shape == b.chunk.shape && a.chunk.content == b.chunk.content &&
           std::ranges::equal(a.chunk.checksums, b.chunk.checksums));
}

void CheckFrameOf(std::string_view body) {
  const std::string frame = FrameOf(body);
  const FrameSeen seen = CheckFrame(frame);
  KV_CHECK(seen.state != FrameState::kUnfinished);
  if (seen.state != FrameState::kWhole) return;
  KV_CHECK(seen.bytes == frame.size());
  CatalogFrame again;
  size_t entries = 0;
  ForEachEntry(frame, [&](const CatalogEntry& entry) {
    entries += 1;
    if (entry.what == What::kFile) {
      KV_CHECK(IsShapeOf(entry.chunk.shape, entry.chunk.checksums.size()));
    }
    again.Add(entry);
  });
  const std::string copy = again.Take(seen.node);
  KV_CHECK(CheckFrame(copy).state == FrameState::kWhole);
  // Entries of both, side by side: what is visited lives in the call.
  size_t at = 0;
  ForEachEntry(frame, [&](const CatalogEntry& entry) {
    size_t number = 0;
    ForEachEntry(copy, [&](const CatalogEntry& other) {
      if (number++ == at) ExpectSame(entry, other);
    });
    KV_CHECK(number == entries);
    at += 1;
  });
}

void CheckLog(std::string_view log) {
  (void)DecodeCatalogHeader(log);
  uint64_t files = 0;
  const size_t whole = ReadLiveFiles(log, [&](const CatalogEntry& file) {
    KV_CHECK(file.what == What::kFile);
    files += 1;
    return true;
  });
  KV_CHECK(whole <= log.size());
  KV_CHECK(log.empty() || BytesToNextFrame(log) > 0);
}

}  // namespace
}  // namespace kvstream::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  kvstream::store::CheckFrameOf(input);
  kvstream::store::CheckLog(input);
  return 0;
}
