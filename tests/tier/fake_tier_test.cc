// The clock and the faults of the fake tier, on which simulators build.
#include "tests/support/fake_tier.h"

#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

using test::FakeTier;
using test::Fault;
using test::FaultPlan;
using test::FaultPoint;

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
  FaultPlan plan;
  plan.Script(FaultPoint::kRead, 0, {.kind = Fault::Kind::kErrno, .error = EIO});
  plan.Script(FaultPoint::kRead, 1, {.kind = Fault::Kind::kShort, .at = 5});
  plan.Script(FaultPoint::kRead, 2, {.kind = Fault::Kind::kNever});
  plan.Script(FaultPoint::kRead, 3, {.kind = Fault::Kind::kCorrupt, .at = 7});
  const auto tier = Make({.faults = &plan});
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) Read(tier.get(), ticket);
  EXPECT_FALSE(tier->Stop(100 * kSecond));
  const std::vector<Completion> completions = recorder_.completions();
  ASSERT_EQ(completions.size(), 3u);
  EXPECT_EQ(completions[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(completions[0].error, EIO);
  EXPECT_EQ(completions[1].code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(completions[2].ticket, Ticket{4});
  EXPECT_EQ(completions[2].code, absl::StatusCode::kOk);
  std::vector<std::byte> expected = file_.Copy();
  expected[7] ^= std::byte{0xff};
  EXPECT_EQ(copy_.Copy(), expected);
}

TEST_F(FakeTierTest, DelayedReadEndsLater) {
  FaultPlan plan;
  plan.Script(FaultPoint::kRead, 0, {.kind = Fault::Kind::kDelay, .delay = 3 * kSecond});
  const auto tier = Make({.faults = &plan});
  Read(tier.get(), 1);
  Read(tier.get(), 2);
  EXPECT_TRUE(tier->Stop(100 * kSecond));
  EXPECT_EQ(recorder_.completions()[0].ticket, Ticket{2});
  EXPECT_EQ(recorder_.completions()[1].code, absl::StatusCode::kOk);
  EXPECT_EQ(tier->now(), 4 * kSecond + 10 * kMillisecond);
}

TEST_F(FakeTierTest, HarmComesOnlyWhereItMay) {
  FaultPlan plan;
  plan.SetRates(FaultPoint::kRead, {.error = 1});
  const auto tier = Make(
      {.faults = &plan, .may_harm = [](FaultPoint, const Fault&, const auto&) { return false; }});
  Read(tier.get(), 1);
  EXPECT_TRUE(tier->Stop(100 * kSecond));
  EXPECT_EQ(recorder_.completions()[0].code, absl::StatusCode::kOk);
}

TEST_F(FakeTierTest, HungReadsEndInTheEnd) {
  FaultPlan plan;
  plan.Script(FaultPoint::kRead, 0, {.kind = Fault::Kind::kNever});
  const auto tier = Make({.faults = &plan});
  Read(tier.get(), 1);
  tier->AdvanceTo(100 * kSecond);
  EXPECT_EQ(recorder_.count(), 0u);
  tier->EndHung();
  EXPECT_EQ(recorder_.completions()[0].code, absl::StatusCode::kUnavailable);
  EXPECT_EQ(tier->running(), 0u);
}

TEST(FaultRatesTest, RatesAreMetAndTheSeedDecides) {
  FaultPlan plan(7);
  FaultPlan same(7);
  const FaultPlan::Rates rates{.error = 0.2, .short_count = 0.1, .delay = 0.3, .never = 0.1};
  for (FaultPlan* p : {&plan, &same}) p->SetRates(FaultPoint::kRead, rates);
  std::map<Fault::Kind, int> counts;
  for (int i = 0; i < 10000; ++i) {
    const Fault fault = plan.Next(FaultPoint::kRead, 4096);
    ++counts[fault.kind];
    EXPECT_EQ(same.Next(FaultPoint::kRead, 4096).kind, fault.kind);
    EXPECT_EQ(plan.Next(FaultPoint::kWrite, 4096).kind, Fault::Kind::kNone);
    (void)same.Next(FaultPoint::kWrite, 4096);
  }
  EXPECT_NEAR(counts[Fault::Kind::kErrno], 2000, 200);
  EXPECT_NEAR(counts[Fault::Kind::kShort], 1000, 150);
  EXPECT_NEAR(counts[Fault::Kind::kDelay], 3000, 250);
  EXPECT_NEAR(counts[Fault::Kind::kNever], 1000, 150);
  EXPECT_EQ(counts[Fault::Kind::kCorrupt], 0);
}

}  // namespace
}  // namespace kvstream::tier
