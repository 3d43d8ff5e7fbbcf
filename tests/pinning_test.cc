#include "server/pinning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/gpu_mode.h"
#include "tests/support/log_recorder.h"

namespace kvstream {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class TestDevice final : public gpu::Device {
 public:
  const std::string& uuid() const override { return uuid_; }
  const std::string& name() const override { return name_; }
  absl::StatusOr<uint64_t> OpenIpc(std::string_view, uint64_t) override { return kUnused; }
  absl::StatusOr<uint64_t> Import(int, uint64_t) override { return kUnused; }
  absl::Status Close(uint64_t) override { return kUnused; }
  absl::Status Copy(gpu::Direction, std::span<const gpu::Fragment>) override { return kUnused; }
  absl::StatusOr<uint64_t> Completed(gpu::Direction) override { return kUnused; }

 private:
  inline static const absl::Status kUnused = absl::UnimplementedError("not of this test");
  const std::string uuid_ = "GPU-1";
  const std::string name_ = "test";
};

// One device, or none; the pin with the number `failing` fails.
class TestDriver final : public gpu::Driver {
 public:
  explicit TestDriver(bool device = true) {
    if (device) device_.emplace();
  }

  std::vector<gpu::Device*> devices() override {
    return device_.has_value() ? std::vector<gpu::Device*>{&*device_} : std::vector<gpu::Device*>{};
  }
  const std::string& reason() const override { return reason_; }
  const std::vector<std::string>& unused() const override { return unused_gpus; }

  absl::Status Pin(std::span<std::byte> memory) override {
    if (sizes.size() == failing) return absl::ResourceExhaustedError("no more");
    sizes.push_back(memory.size());
    EXPECT_TRUE(pinned.insert(memory.data()).second);
    return absl::OkStatus();
  }
  void Unpin(std::span<std::byte> memory) override { EXPECT_EQ(pinned.erase(memory.data()), 1u); }

  std::vector<std::string> unused_gpus;
  size_t failing = SIZE_MAX;
  std::vector<uint64_t> sizes;
  // Where slices begin.
  std::set<std::byte*> pinned;

 private:
  std::optional<TestDevice> device_;
  const std::string reason_ = "no driver";
};

class PinningTest : public testing::Test {
 protected:
  std::byte* At(size_t byte) { return memory_.data() + byte; }

  std::vector<std::byte> memory_{100};
  TestDriver driver_;
};

TEST_F(PinningTest, SlicesCoverTheMemoryAndAreUnpinnedOnce) {
  {
    Pinning pinning(&driver_);
    ASSERT_TRUE(pinning.Pin(memory_, 40).ok());
    EXPECT_EQ(pinning.bytes(), 100u);
    EXPECT_THAT(driver_.sizes, ElementsAre(40, 40, 20));
    EXPECT_THAT(driver_.pinned, ElementsAre(At(0), At(40), At(80)));
    pinning.Unpin();
    EXPECT_EQ(pinning.bytes(), 0u);
    EXPECT_THAT(driver_.pinned, IsEmpty());
  }
  EXPECT_THAT(driver_.pinned, IsEmpty());
}

TEST_F(PinningTest, SliceThatFailsLeavesThoseBeforeIt) {
  driver_.failing = 2;
  {
    Pinning pinning(&driver_);
    const absl::Status status = pinning.Pin(memory_, 40);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("of the staging pool: no more"));
    EXPECT_EQ(pinning.bytes(), 80u);
  }
  EXPECT_THAT(driver_.pinned, IsEmpty());
}

TEST_F(PinningTest, WithoutAGpuNothingIsPinned) {
  TestDriver none(false);
  Pinning pinning(&none);
  ASSERT_TRUE(pinning.Pin(memory_, 40).ok());
  EXPECT_EQ(pinning.bytes(), 0u);
  EXPECT_THAT(none.sizes, IsEmpty());
}

config::Options PoolOf(uint64_t mib, config::PinPolicy pin) {
  config::Options options;
  options.pool_bytes = mib * kMiB;
  options.pool_reserved_bytes = mib * kMiB * 33 / 100 / 4096 * 4096;
  options.segment_bytes_max = 16 * kMiB;
  options.pin = pin;
  return options;
}

const absl::Status kCause = absl::ResourceExhaustedError("no more");

TEST(PinPolicyTest, ShrunkPoolKeepsTheShareOfReads) {
  const config::Options whole = PoolOf(401, config::PinPolicy::kShrink);
  const auto left = WithPoolPinned(whole, 301 * kMiB, kCause);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->pool_bytes, 301 * kMiB);
  EXPECT_EQ(left->pool_reserved_bytes, 301 * kMiB * 33 / 100 / 4096 * 4096);
  EXPECT_EQ(left->segment_bytes_max, whole.segment_bytes_max);
  EXPECT_EQ(PoolIsSmaller(401 * kMiB, 301 * kMiB, kCause),
            "the staging pool has 301 of 401 MiB, since the rest could not be pinned for the GPUs: "
            "no more");
}

TEST(PinPolicyTest, LargestPoolDoesNotOverflow) {
  const auto left =
      WithPoolPinned(PoolOf(1048576, config::PinPolicy::kShrink), 1044480 * kMiB, kCause);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(left->pool_reserved_bytes, 1044480 * kMiB * 33 / 100 / (64 * kMiB) * (64 * kMiB));
}

TEST(PinPolicyTest, LessThanHalfOfThePoolIsTooLittle) {
  const config::Options whole = PoolOf(400, config::PinPolicy::kShrink);
  EXPECT_TRUE(WithPoolPinned(whole, 200 * kMiB, kCause).ok());
  const auto less = WithPoolPinned(whole, 199 * kMiB, kCause);
  EXPECT_EQ(less.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(less.status().message()),
              HasSubstr("no more; 199 of 400 MiB are pinned, too little even for"));
}

TEST(PinPolicyTest, TwoOfTheLargestSegmentsMustFitWhatReadsOwn) {
  // A third of 97 MiB is 32 MiB and a bit.
  const config::Options whole = PoolOf(110, config::PinPolicy::kShrink);
  EXPECT_TRUE(WithPoolPinned(whole, 97 * kMiB, kCause).ok());
  EXPECT_EQ(WithPoolPinned(whole, 96 * kMiB, kCause).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(PinPolicyTest, ExitRefusesASmallerPool) {
  const auto left = WithPoolPinned(PoolOf(400, config::PinPolicy::kExit), 396 * kMiB, kCause);
  EXPECT_EQ(left.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(left.status().message()),
              HasSubstr("which pool.pin: SHRINK would do with"));
}

std::unique_ptr<gpu::Driver> WithDevice() { return std::make_unique<TestDriver>(); }
std::unique_ptr<gpu::Driver> WithoutDevice() { return std::make_unique<TestDriver>(false); }

TEST(GpuModeTest, AutoTakesWhatIsThere) {
  const auto driver = OpenDriver(config::GpuMode::kAuto, WithDevice);
  ASSERT_TRUE(driver.ok());
  EXPECT_EQ((*driver)->devices().size(), 1u);
  const auto none = OpenDriver(config::GpuMode::kAuto, WithoutDevice);
  ASSERT_TRUE(none.ok());
  EXPECT_THAT((*none)->devices(), IsEmpty());
  EXPECT_EQ((*none)->reason(), "no driver");
}

TEST(GpuModeTest, EachGpuThatFailedItsStartIsSaidOnce) {
  const test::LogRecorder log;
  const auto driver = OpenDriver(config::GpuMode::kAuto, []() -> std::unique_ptr<gpu::Driver> {
    auto one_of_three = std::make_unique<TestDriver>();
    one_of_three->unused_gpus = {"GPU-2: no memory", "GPU-3: it fails"};
    return one_of_three;
  });
  ASSERT_TRUE(driver.ok());
  EXPECT_EQ((*driver)->devices().size(), 1u);
  EXPECT_EQ(log.Count("a GPU is not used: cause=GPU-2: no memory"), 1u);
  EXPECT_EQ(log.Count("a GPU is not used"), 2u);
}

TEST(GpuModeTest, OffOpensNoDriver) {
  const auto driver = OpenDriver(config::GpuMode::kOff, []() -> std::unique_ptr<gpu::Driver> {
    ADD_FAILURE() << "opened";
    return nullptr;
  });
  ASSERT_TRUE(driver.ok());
  EXPECT_THAT((*driver)->devices(), IsEmpty());
  EXPECT_EQ((*driver)->reason(), "no GPU: gpu.mode is OFF");
}

TEST(GpuModeTest, RequiredRefusesToDoWithoutAndSaysWhy) {
  EXPECT_TRUE(OpenDriver(config::GpuMode::kRequired, WithDevice).ok());
  const auto none = OpenDriver(config::GpuMode::kRequired, WithoutDevice);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(none.status().message(), "gpu.mode is REQUIRED: no driver");
}

}  // namespace
}  // namespace kvstream
