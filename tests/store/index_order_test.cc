// An index that was written and read again, as by a restart.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "server/store/chunk_format.h"
#include "server/store/chunk_index.h"
#include "server/store/index_snapshot.h"

namespace kvstream::store {
namespace {

constexpr ChunkShape kOneBlock{4096, 4096};
constexpr TimeNs kLater = 1000 * kSecond;

KeyDigest KeyOf(uint32_t prefix, uint32_t place) {
  KeyDigest key;
  key.bytes[0] = static_cast<uint8_t>(prefix);
  key.bytes[1] = static_cast<uint8_t>(place);
  key.bytes[2] = 1;
  return key;
}

SiblingsId SiblingsOf(uint32_t prefix, uint32_t place) {
  return SiblingsId{uint64_t{prefix} << 32 | place << 8 | 1};
}

void AddFile(ChunkIndex& index, uint32_t prefix, uint32_t place, TierId tier) {
  const uint64_t checksum = prefix * 1000 + place;
  const std::vector<uint64_t> checksums = {checksum};
  index.AddReplica({KeyOf(prefix, place),
                    SiblingsOf(prefix, place),
                    {},
                    kOneBlock,
                    ContentIdOf(kOneBlock, checksums),
                    checksums},
                   tier);
}

std::string SnapshotOf(ChunkIndex& index, TierId tier, TimeNs now) {
  SnapshotWriter writer;
  index.BeginWalk(tier);
  while (!index.WalkOn(tier, 3, now, [&](const OwnFile& file) { writer.Add(file); })) {
  }
  const std::string body = writer.Take();
  return writer.Header(0) + body;
}

void Read(const std::string& snapshot, TierId tier, TimeNs now, ChunkIndex* index) {
  const auto reader = SnapshotReader::Open(snapshot);
  ASSERT_TRUE(reader.ok()) << reader.status();
  reader->ForEach([&](const OwnFile& file) {
    EXPECT_TRUE(index->AddFound(file, tier, now));
    return true;
  });
}

std::vector<KeyDigest> EvictAll(ChunkIndex& index, TierId tier) {
  std::vector<KeyDigest> keys;
  while (true) {
    const auto evicted = index.Evict(tier);
    if (evicted.empty()) return keys;
    for (const EvictedFile& file : evicted) keys.push_back(file.key);
  }
}

TEST(IndexOrderTest, AnIndexThatWasWrittenAndReadGivesUpInTheSameOrder) {
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    ChunkIndex index;
    TimeNs now = kLater;
    for (uint32_t prefix = 0; prefix < 20; ++prefix) {
      const uint32_t places = 1 + random() % 8;
      for (uint32_t place = 0; place < places; ++place) {
        const uint32_t where = 1 + random() % 3;
        for (uint32_t t = 0; t < 2; ++t) {
          if ((where >> t & 1) != 0) AddFile(index, prefix, place, TierId{t});
        }
        if (place > 0) {
          index.Follow(index.Look(KeyOf(prefix, place)), index.Look(KeyOf(prefix, place - 1)));
        }
      }
      index.Touch(KeyOf(prefix, places - 1), now, /*force=*/true);
      now += random() % 3 * 20 * kSecond;
      index.Touch(KeyOf(random() % (prefix + 1), random() % 8), now, /*force=*/false);
    }
    ChunkIndex again;
    const TimeNs restarted = now + kSecond;
    for (uint32_t t = 0; t < 2; ++t) {
      Read(SnapshotOf(index, TierId{t}, now), TierId{t}, restarted, &again);
      EXPECT_EQ(again.tier_usage(TierId{t}).bytes, index.tier_usage(TierId{t}).bytes);
    }
    EXPECT_EQ(again.chunks(), index.chunks());
    for (uint32_t t = 0; t < 2; ++t) {
      EXPECT_EQ(EvictAll(again, TierId{t}), EvictAll(index, TierId{t})) << seed;
    }
  }
}

TEST(IndexOrderTest, WhatIsFoundIsOlderThanWhatIsThere) {
  ChunkIndex index;
  AddFile(index, 1, 0, TierId{0});
  index.Touch(KeyOf(1, 0), kLater, false);
  ChunkIndex before;
  AddFile(before, 2, 0, TierId{0});
  AddFile(before, 1, 0, TierId{0});
  before.Touch(KeyOf(2, 0), kLater, true);
  SnapshotWriter writer;
  before.BeginWalk(TierId{0});
  before.WalkOn(TierId{0}, 9, kLater, [&](const OwnFile& file) {
    EXPECT_EQ(index.AddFound(file, TierId{0}, kLater), file.chunk.key == KeyOf(2, 0))
        << "the other is there";
  });
  EXPECT_EQ(EvictAll(index, TierId{0}), (std::vector<KeyDigest>{KeyOf(2, 0), KeyOf(1, 0)}));
}

// What comes after it was stored since the start, and then all before it is as young.
TEST(IndexOrderTest, WhatIsFoundBeforeSomethingYoungIsYoung) {
  ChunkIndex before;
  AddFile(before, 1, 0, TierId{0});
  before.Touch(KeyOf(1, 0), kLater, true);
  ChunkIndex index;
  AddFile(index, 9, 0, TierId{0});
  AddFile(index, 1, 1, TierId{0});
  index.Follow(KeyOf(1, 1), SiblingsOf(1, 0));
  index.Touch(KeyOf(1, 1), kLater + 100 * kSecond, true);
  before.BeginWalk(TierId{0});
  before.WalkOn(TierId{0}, 9, kLater + 50 * kSecond, [&](const OwnFile& file) {
    EXPECT_TRUE(index.AddFound(file, TierId{0}, kLater + 100 * kSecond));
  });
  EXPECT_EQ(EvictAll(index, TierId{0}),
            (std::vector<KeyDigest>{KeyOf(9, 0), KeyOf(1, 1), KeyOf(1, 0)}));
}

TEST(IndexOrderTest, AWalkGoesOnWhileFilesComeAndGo) {
  ChunkIndex index;
  for (uint32_t prefix = 0; prefix < 10; ++prefix) AddFile(index, prefix, 0, TierId{0});
  index.BeginWalk(TierId{0});
  std::map<KeyDigest, int> met;
  const auto visit = [&](const OwnFile& file) { met[file.chunk.key] += 1; };
  EXPECT_FALSE(index.WalkOn(TierId{0}, 3, kLater, visit));
  index.RemoveReplicas(KeyOf(3, 0), TierId{0});  // The next one.
  index.Touch(KeyOf(4, 0), kLater, true);        // Then the next one; now the youngest.
  index.RemoveReplicas(KeyOf(0, 0), TierId{0});  // One that was met.
  AddFile(index, 10, 0, TierId{0});
  while (!index.WalkOn(TierId{0}, 1, kLater, visit)) {
  }
  EXPECT_EQ(met.size(), 10u);
  for (const auto& [key, times] : met) EXPECT_EQ(times, 1);
  EXPECT_FALSE(met.contains(KeyOf(3, 0)));
  EXPECT_TRUE(met.contains(KeyOf(4, 0)));
  EXPECT_TRUE(met.contains(KeyOf(10, 0)));
}

}  // namespace
}  // namespace kvstream::store
