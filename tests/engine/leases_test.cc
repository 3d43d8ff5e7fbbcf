#include "server/engine/leases.h"

#include <gtest/gtest.h>

#include <random>

namespace kvstream::engine {
namespace {

KeyDigest Key(uint8_t i) {
  KeyDigest key;
  key.bytes[0] = i;
  return key;
}

class LeasesTest : public testing::Test {
 protected:
  LeasesTest() {
    const std::vector<uint64_t> checksums{1};
    for (uint8_t i = 1; i <= 4; ++i) {
      index_.AddReplica({Key(i), {}, {}, {4096, 4096}, {}, checksums}, TierId{0});
    }
  }
  uint32_t LeasesOf(uint8_t i) const { return index_.Find(Key(i))->leases; }

  store::ChunkIndex index_;
  Leases leases_{&index_};
};

TEST_F(LeasesTest, ALeaseCoversWhatTheIndexKnows) {
  const uint64_t id = leases_.Grant(SessionId{1}, {Key(1), Key(9), Key(2)}, 100);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(leases_.chunks(), 2u);
  EXPECT_EQ(LeasesOf(1), 1u);
  EXPECT_EQ(leases_.Grant(SessionId{1}, {Key(9)}, 100), 0u);
  EXPECT_EQ(leases_.count(), 1u);
}

TEST_F(LeasesTest, OnlyTheOwnerReleasesAndOnlyOnce) {
  const uint64_t id = leases_.Grant(SessionId{1}, {Key(1)}, 100);
  EXPECT_FALSE(leases_.Release(SessionId{2}, id));
  EXPECT_EQ(LeasesOf(1), 1u);
  EXPECT_TRUE(leases_.Release(SessionId{1}, id));
  EXPECT_FALSE(leases_.Release(SessionId{1}, id));
  EXPECT_EQ(LeasesOf(1), 0u);
}

TEST_F(LeasesTest, LeasesExpireInOrder) {
  leases_.Grant(SessionId{1}, {Key(1)}, 300);
  leases_.Grant(SessionId{1}, {Key(2)}, 100);
  EXPECT_EQ(leases_.NextDeadline(), 100);
  EXPECT_EQ(leases_.Expire(99), 0u);
  EXPECT_EQ(leases_.Expire(100), 1u);
  EXPECT_EQ(LeasesOf(2), 0u);
  EXPECT_EQ(leases_.NextDeadline(), 300);
}

TEST_F(LeasesTest, ASessionsLeasesEndWithIt) {
  leases_.Grant(SessionId{1}, {Key(1), Key(2)}, 100);
  leases_.Grant(SessionId{1}, {Key(2)}, 100);
  leases_.Grant(SessionId{2}, {Key(2)}, 100);
  leases_.ReleaseAllOf(SessionId{1});
  leases_.ReleaseAllOf(SessionId{1});
  EXPECT_EQ(LeasesOf(1), 0u);
  EXPECT_EQ(LeasesOf(2), 1u);
  EXPECT_EQ(leases_.count(), 1u);
}

TEST_F(LeasesTest, ASessionCannotHoldLeasesWithoutBound) {
  for (size_t i = 0; i < Leases::kLeasesMax; ++i) {
    ASSERT_NE(leases_.Grant(SessionId{1}, {Key(1)}, 100), 0u);
  }
  EXPECT_EQ(leases_.Grant(SessionId{1}, {Key(1)}, 100), 0u);
  EXPECT_NE(leases_.Grant(SessionId{2}, {Key(1)}, 100), 0u);
  const std::vector<KeyDigest> many(Leases::kLeasedChunksMax, Key(2));
  EXPECT_NE(leases_.Grant(SessionId{3}, many, 100), 0u);
  EXPECT_EQ(leases_.Grant(SessionId{3}, {Key(1)}, 100), 0u);
  leases_.ReleaseAllOf(SessionId{1});
  EXPECT_NE(leases_.Grant(SessionId{1}, {Key(1)}, 100), 0u);
}

// Every way out, at random: afterwards nothing is leased.
TEST_F(LeasesTest, NothingStaysLeasedWhateverTheWayOut) {
  std::mt19937_64 random(3);
  std::vector<uint64_t> ids;
  TimeNs now = 0;
  for (int i = 0; i < 20000; ++i) {
    now += static_cast<TimeNs>(random() % 10);
    switch (random() % 5) {
      case 0:
      case 1:
        ids.push_back(leases_.Grant(SessionId{random() % 4}, {Key(1 + random() % 4), Key(3)},
                                    now + static_cast<TimeNs>(random() % 200)));
        break;
      case 2:
        if (!ids.empty()) leases_.Release(SessionId{random() % 4}, ids[random() % ids.size()]);
        break;
      case 3:
        leases_.ReleaseAllOf(SessionId{random() % 4});
        break;
      default:
        leases_.Expire(now);
    }
  }
  leases_.Expire(kNever - 1);
  EXPECT_EQ(leases_.count(), 0u);
  EXPECT_EQ(leases_.chunks(), 0u);
  for (uint8_t i = 1; i <= 4; ++i) EXPECT_EQ(LeasesOf(i), 0u);
}

}  // namespace
}  // namespace kvstream::engine
