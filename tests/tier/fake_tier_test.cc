// The clock and the faults of the fake tier, on which simulators build.
#include "tests/support/fake_tier.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

using test::FakeTier;
using Fault = FakeTier::Fault;

constexpr uint64_t kBytes = 256 * kBlockBytes;

class FakeTierTest : public testing::Test {
 protected:
  std::unique_ptr<FakeTier> Make(FakeTier::Options options) {
    options.read_rate = kBytes;  // One second for a read.
    options.latency = 10 * kMillisecond;
    auto tier = std::make_unique<FakeTier>(options, &recorder_);
    tier->files()[path_] = file_.Copy();
    return tier;
  }
  void Read(FakeTier* tier, uint64_t ticket) {
    const ReadRequest read{Ticket{ticket}, &path_, 0, kBytes, copy_.data()};
    tier->Read({&read, 1});
  }

  Recorder recorder_;
  const std::string path_ = "v1/file.kv";
  const Blocks file_ = Blocks::Pattern(kBytes, 1);
  const Blocks copy_{kBytes};
};

TEST_F(FakeTierTest, RequestsMoveInTurnAndWaitSideBySide) {
  const auto tier = Make({});
  Read(tier.get(), 1);
  Read(tier.get(), 2);
  EXPECT_EQ(recorder_.count(), 0u);
  tier->AdvanceTo(kSecond + 10 * kMillisecond - 1);
  EXPECT_EQ(recorder_.count(), 0u);
  tier->AdvanceTo(kSecond + 10 * kMillisecond);
  EXPECT_EQ(recorder_.count(), 1u);
  tier->AdvanceTo(2 * kSecond);
  EXPECT_EQ(tier->NextEventAt(), 2 * kSecond + 10 * kMillisecond);
  EXPECT_EQ(recorder_.count(), 1u);
  tier->AdvanceTo(3 * kSecond);
  EXPECT_EQ(recorder_.count(), 2u);
  EXPECT_EQ(tier->NextEventAt(), kNever);
}

TEST_F(FakeTierTest, RateMayChangeUnderARead) {
  const auto tier = Make({});
  Read(tier.get(), 1);
  tier->AdvanceTo(kSecond / 2);
  tier->SetReadRate(0);
  EXPECT_EQ(tier->NextEventAt(), kNever);
  tier->AdvanceTo(5 * kSecond);
  tier->SetReadRate(kBytes / 2);
  EXPECT_EQ(tier->NextEventAt(), 6 * kSecond);
  tier->AdvanceTo(7 * kSecond);
  EXPECT_EQ(recorder_.count(), 1u);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
}

TEST_F(FakeTierTest, FaultsComeAsScripted) {
  const auto tier = Make({.read_fault = [](const ReadRequest& read) -> Fault {
    switch (read.ticket.value) {
      case 1:
        return {.kind = Fault::Kind::kError, .code = absl::StatusCode::kUnavailable, .error = 5};
      case 2:
        return {.kind = Fault::Kind::kShort};
      case 3:
        return {.kind = Fault::Kind::kNever};
      default:
        return {.kind = Fault::Kind::kCorrupt, .at = 7};
    }
  }});
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) Read(tier.get(), ticket);
  EXPECT_FALSE(tier->Stop(100 * kSecond));
  const std::vector<Completion> completions = recorder_.completions();
  ASSERT_EQ(completions.size(), 3u);
  EXPECT_EQ(completions[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(completions[0].error, 5);
  EXPECT_EQ(completions[1].code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(completions[2].ticket, Ticket{4});
  EXPECT_EQ(completions[2].code, absl::StatusCode::kOk);
  std::vector<std::byte> expected = file_.Copy();
  expected[7] ^= std::byte{0xff};
  EXPECT_EQ(copy_.Copy(), expected);
}

}  // namespace
}  // namespace kvstream::tier
