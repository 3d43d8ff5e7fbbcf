#include "server/base/types.h"

#include <gtest/gtest.h>

#include "absl/container/flat_hash_map.h"
#include "server/base/random.h"

namespace kvstream {
namespace {

TEST(TierSetTest, HoldsWhatWasAddedAndNotRemoved) {
  TierSet set;
  EXPECT_TRUE(set.empty());
  set.Add(TierId{0});
  set.Add(TierId{kTiersMax - 1});
  set.Add(TierId{0});
  EXPECT_EQ(set.size(), 2);
  EXPECT_TRUE(set.Has(TierId{kTiersMax - 1}));
  EXPECT_FALSE(set.Has(TierId{1}));
  set.Remove(TierId{0});
  set.Remove(TierId{3});
  EXPECT_EQ(set, TierSet::Of(TierId{kTiersMax - 1}));
}

TEST(TierSetTest, JoinsAndMeets) {
  const TierSet a = TierSet::FromBits(0b011);
  const TierSet b = TierSet::FromBits(0b110);
  EXPECT_EQ((a | b).bits(), 0b111u);
  EXPECT_EQ((a & b), TierSet::Of(TierId{1}));
  EXPECT_EQ(a.Without(b), TierSet::Of(TierId{0}));
}

TEST(DigestTest, HexIsLowerCaseAndInByteOrder) {
  KeyDigest digest;
  digest.bytes = {0x01, 0xab, 0xff};
  EXPECT_EQ(ToHex(digest), "01abff00000000000000000000000000");
}

TEST(DigestTest, DigestsThatShareTheirHashStayApartInAMap) {
  KeyDigest a;
  KeyDigest b;
  b.bytes[15] = 1;
  absl::flat_hash_map<KeyDigest, int> map = {{a, 1}, {b, 2}};
  EXPECT_EQ(map.at(a), 1);
  EXPECT_EQ(map.at(b), 2);
}

TEST(RandomTest, TwoDrawsDiffer) { EXPECT_NE(RandomBytes16(), RandomBytes16()); }

}  // namespace
}  // namespace kvstream
