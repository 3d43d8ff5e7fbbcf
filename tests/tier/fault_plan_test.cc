// Every kind of fault, on both I/O engines, for reads and writes: a tier answers with a typed
// error, or resumes, or says OK; and it never says OK with other bytes than a verification above it
// would see. The plan stands between the tier and the kernel.
#include "tests/support/fault_plan.h"

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/tier/file_tier.h"
#include "tests/support/faulty_queue.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

using test::Fault;
using test::FaultPlan;
using test::FaultPoint;
using ::testing::IsEmpty;

constexpr uint64_t kPieceBytes = 8 * kBlockBytes;
constexpr uint64_t kPayload = 64 * kBlockBytes;

class FaultPlanTest : public testing::TestWithParam<std::tuple<IoEngine, FaultPoint>> {
 protected:
  FaultPlanTest() {
    TierOptions options;
    options.name = "test";
    options.root = folder_.path();
    options.io_bytes = kPieceBytes;
    options.io_engine = std::get<0>(GetParam());
    auto tier =
        FileTier::Open(options, {}, &recorder_, test::FaultyQueue::Wrapper(&plan_, nullptr));
    EXPECT_TRUE(tier.ok()) << tier.status();
    if (tier.ok()) tier_ = *std::move(tier);
  }
  ~FaultPlanTest() override {
    if (tier_ != nullptr) {
      EXPECT_TRUE(tier_->Stop(Now() + 60 * kSecond));
    }
  }

  FaultPoint point() const { return std::get<1>(GetParam()); }
  bool reads() const { return point() == FaultPoint::kRead; }

  Completion Write() {
    tier_->Write({.ticket = {},
                  .path = &path_,
                  .header = file_.Part(0, kBlockBytes),
                  .pieces = {file_.Part(kBlockBytes, kPayload)}});
    recorder_.Await(++awaited_);
    return recorder_.completions().back();
  }
  Completion Read() {
    const ReadRequest read{{}, &path_, 0, copy_.size(), copy_.data()};
    tier_->Read({&read, 1});
    recorder_.Await(++awaited_);
    return recorder_.completions().back();
  }
  // What the fault is aimed at: a write, or a read of what was written well.
  Completion Hit(uint64_t number, const Fault& fault) {
    if (reads()) {
      EXPECT_EQ(Write().code, absl::StatusCode::kOk);
    }
    plan_.Script(point(), number, fault);
    return reads() ? Read() : Write();
  }

  FaultPlan plan_;
  TemporaryFolder folder_;
  Recorder recorder_;
  std::string path_ = "v1/aa/bb/cc/file.kv";
  const Blocks file_ = Blocks::Pattern(kBlockBytes + kPayload, 4);
  const Blocks copy_{kBlockBytes + kPayload};
  size_t awaited_ = 0;
  std::unique_ptr<Tier> tier_;
};

TEST_P(FaultPlanTest, ErrnoIsATypedError) {
  const std::pair<int, absl::StatusCode> errors[] = {{EIO, absl::StatusCode::kUnavailable},
                                                     {ENOSPC, absl::StatusCode::kResourceExhausted},
                                                     {EACCES, absl::StatusCode::kPermissionDenied}};
  uint64_t number = 3;
  for (const auto& [error, code] : errors) {
    path_ = "v1/aa/bb/cc/" + std::to_string(error) + ".kv";
    const Completion completion = Hit(number, {.kind = Fault::Kind::kErrno, .error = error});
    EXPECT_EQ(completion.code, code);
    EXPECT_EQ(completion.error, error);
    if (!reads()) {
      EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/" + path_));
    }
    number += 9;  // One of the next nine pieces.
  }
}

TEST_P(FaultPlanTest, ShortCountIsResumed) {
  EXPECT_EQ(Hit(2, {.kind = Fault::Kind::kShort, .at = kBlockBytes + 100}).code,
            absl::StatusCode::kOk);
  EXPECT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
}

TEST_P(FaultPlanTest, CountOfNothingIsAnError) {
  const Completion completion = Hit(2, {.kind = Fault::Kind::kShort, .at = 0});
  EXPECT_EQ(completion.code,
            reads() ? absl::StatusCode::kDataLoss : absl::StatusCode::kUnavailable);
  if (!reads()) {
    EXPECT_THAT(folder_.Files(), IsEmpty());
  }
}

TEST_P(FaultPlanTest, DelayChangesNothingElse) {
  EXPECT_EQ(Hit(2, {.kind = Fault::Kind::kDelay, .delay = 20 * kMillisecond}).code,
            absl::StatusCode::kOk);
  EXPECT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
}

TEST_P(FaultPlanTest, CorruptBytesAreThereForAVerificationToSee) {
  EXPECT_EQ(Hit(2, {.kind = Fault::Kind::kCorrupt, .at = 7}).code, absl::StatusCode::kOk);
  if (!reads()) {
    EXPECT_EQ(Read().code, absl::StatusCode::kOk);
  }
  // Exactly that byte: the tier passes on what it was given, and vouches for nothing.
  std::vector<std::byte> expected = file_.Copy();
  size_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) different += copy_.data()[i] != expected[i] ? 1 : 0;
  EXPECT_EQ(different, 1u);
}

TEST_P(FaultPlanTest, RatesHitSomeAndNoOkHasOtherBytes) {
  ASSERT_EQ(Write().code, absl::StatusCode::kOk);
  const std::string written = path_;
  plan_.SetRates(point(), {.error = 0.05, .short_count = 0.2, .delay = 0.05});
  size_t failed = 0;
  for (int i = 0; i < 40; ++i) {
    if (!reads()) path_ = "v1/aa/bb/cc/" + std::to_string(i) + ".kv";
    const Completion completion = reads() ? Read() : Write();
    if (completion.code != absl::StatusCode::kOk) {
      ++failed;
      continue;
    }
    if (!reads()) {
      EXPECT_EQ(Read().code, absl::StatusCode::kOk);
    }
    EXPECT_EQ(copy_.Copy(), file_.Copy());
  }
  EXPECT_GT(failed, 0u);
  EXPECT_LT(failed, 40u);
  plan_.Clear();
  path_ = written;
  EXPECT_EQ(Read().code, absl::StatusCode::kOk);
  EXPECT_EQ(copy_.Copy(), file_.Copy());
}

const auto kEnginesAndPoints =
    testing::Combine(testing::Values(IoEngine::kUring, IoEngine::kThreads),
                     testing::Values(FaultPoint::kRead, FaultPoint::kWrite));

std::string NameOf(const testing::TestParamInfo<std::tuple<IoEngine, FaultPoint>>& test) {
  return std::string(std::get<0>(test.param) == IoEngine::kUring ? "Uring" : "Threads") +
         (std::get<1>(test.param) == FaultPoint::kRead ? "Read" : "Write");
}

INSTANTIATE_TEST_SUITE_P(Engines, FaultPlanTest, kEnginesAndPoints, NameOf);

class HungOperationTest : public testing::TestWithParam<std::tuple<IoEngine, FaultPoint>> {};

// What a tier that never ends may touch for ever: never freed.
struct Abandoned {
  FaultPlan plan;
  Recorder recorder;
  absl::Notification looked_for_folder;
  const std::string hung = "v1/hung.kv";
  const std::string deep = "v1/aa/bb/hung.kv";
  const std::string good = "v1/good.kv";
  const Blocks file = Blocks::Pattern(3 * kBlockBytes, 4);
  const Blocks into{3 * kBlockBytes};
  const Blocks lost{3 * kBlockBytes};  // For the read that never ends, which does read.
};

Abandoned& NewAbandoned() {
  static auto* const kept = new std::vector<std::unique_ptr<Abandoned>>();
  return *kept->emplace_back(std::make_unique<Abandoned>());
}

absl::StatusOr<std::unique_ptr<Tier>> OpenPlanned(IoEngine engine, const std::string& root,
                                                  Abandoned* all,
                                                  test::FaultyQueue::Answer answer = nullptr) {
  TierOptions options;
  options.name = "test";
  options.root = root;
  options.io_engine = engine;
  return FileTier::Open(options, {}, &all->recorder,
                        test::FaultyQueue::Wrapper(&all->plan, std::move(answer)));
}

TEST_P(HungOperationTest, NeverEndsAndHoldsUpNoOther) {
  Abandoned& all = NewAbandoned();
  const TemporaryFolder folder;
  auto tier = OpenPlanned(std::get<0>(GetParam()), folder.path(), &all);
  ASSERT_TRUE(tier.ok()) << tier.status();
  const auto write = [&](uint64_t ticket, const std::string* path) {
    (*tier)->Write({.ticket = Ticket{ticket},
                    .path = path,
                    .header = all.file.Part(0, kBlockBytes),
                    .pieces = {all.file.Part(kBlockBytes, 2 * kBlockBytes)}});
  };
  const auto read = [&](uint64_t ticket, const Blocks& into) {
    const ReadRequest request{Ticket{ticket}, &all.good, 0, into.size(), into.data()};
    (*tier)->Read({&request, 1});
  };
  write(1, &all.good);
  all.recorder.Await(1);
  const bool reads = std::get<1>(GetParam()) == FaultPoint::kRead;
  all.plan.Script(std::get<1>(GetParam()), reads ? 0 : 2, {.kind = Fault::Kind::kNever});
  reads ? read(2, all.lost) : write(2, &all.hung);
  read(3, all.into);
  all.recorder.Await(2);
  EXPECT_EQ(all.recorder.completions()[1].ticket, Ticket{3});
  EXPECT_EQ(all.recorder.completions()[1].code, absl::StatusCode::kOk);
  EXPECT_FALSE((*tier)->Stop(Now() + 10 * kMillisecond));
  tier->reset();
  EXPECT_EQ(all.recorder.count(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Engines, HungOperationTest, kEnginesAndPoints, NameOf);

class HungFolderTest : public testing::TestWithParam<IoEngine> {};

TEST_P(HungFolderTest, AFolderThatIsNeverMadeHoldsUpNoOtherWrite) {
  Abandoned& all = NewAbandoned();
  const TemporaryFolder folder;
  auto tier = OpenPlanned(GetParam(), folder.path(), &all,
                          [&all](const Operation& operation, int32_t result) {
                            const bool made = operation.kind == Operation::Kind::kMakeFolder;
                            if (made && !all.looked_for_folder.HasBeenNotified()) {
                              all.looked_for_folder.Notify();
                            }
                            return result;
                          });
  ASSERT_TRUE(tier.ok()) << tier.status();
  const auto write = [&](uint64_t ticket, const std::string* path) {
    (*tier)->Write({.ticket = Ticket{ticket},
                    .path = path,
                    .header = all.file.Part(0, kBlockBytes),
                    .pieces = {all.file.Part(kBlockBytes, 2 * kBlockBytes)}});
  };
  // The first open finds no folder, v1 is there, and v1/aa is the next.
  all.plan.Script(FaultPoint::kName, 2, {.kind = Fault::Kind::kNever});
  write(1, &all.deep);
  // The next folder is asked for before the lane looks for other writes.
  all.looked_for_folder.WaitForNotification();
  write(2, &all.good);
  all.recorder.Await(1);
  EXPECT_EQ(all.recorder.completions()[0].ticket, Ticket{2});
  EXPECT_EQ(all.recorder.completions()[0].code, absl::StatusCode::kOk);
  EXPECT_FALSE((*tier)->Stop(Now() + 10 * kMillisecond));
  tier->reset();
  EXPECT_EQ(all.recorder.count(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Engines, HungFolderTest,
                         testing::Values(IoEngine::kUring, IoEngine::kThreads));

}  // namespace
}  // namespace kvstream::tier
