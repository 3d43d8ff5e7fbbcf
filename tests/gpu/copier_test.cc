// The copier on a real GPU; skips where there is none.
#include "client/cuda/copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "absl/synchronization/notification.h"
#include "client/cuda/cuda_status.h"
#include "tests/gpu/device_pool.h"

namespace kvstream::cuda {
namespace {

constexpr uint64_t kBytes = 8 * 1024 * 1024;

class CopierTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    (void)cudaGetLastError();
    if (error != cudaSuccess) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
    pool_ = *DevicePool::Create(PoolKind::kMalloc, 0, 2 * kBytes);
    image_.resize(2 * kBytes);
    std::minstd_rand random(7);
    for (uint8_t& byte : image_) byte = static_cast<uint8_t>(random() >> 8);
    ASSERT_TRUE(pool_->Upload(image_).ok());
  }

  uint64_t base() const { return reinterpret_cast<uint64_t>(pool_->data()); }

  // Cuts the first half into ranges of random sizes up to `most`, to be copied in random order to
  // the second half, `skew` bytes further and with a gap after each; does the same to the image.
  std::vector<Copy> RandomCopies(uint64_t most, uint64_t skew, uint64_t gap) {
    std::mt19937_64 random(most * 64 + skew);
    std::vector<Copy> copies;
    uint64_t src = 0;
    uint64_t dst = kBytes + skew;
    for (;;) {
      const uint64_t bytes = 1 + random() % most;
      if (src + bytes > kBytes || dst + bytes > 2 * kBytes) break;
      copies.push_back({base() + src, base() + dst, bytes});
      std::copy_n(image_.begin() + static_cast<ptrdiff_t>(src), bytes,
                  image_.begin() + static_cast<ptrdiff_t>(dst));
      src += bytes;
      dst += bytes + gap;
    }
    std::shuffle(copies.begin(), copies.end(), random);
    return copies;
  }

  absl::Status Run(Copier* copier, const std::vector<Copy>& copies) {
    absl::Notification done;
    absl::Status result;
    copier->Add(
        0,
        [&](std::vector<Copy>* list) {
          *list = copies;
          return absl::OkStatus();
        },
        [&](const absl::Status& status) {
          result = status;
          done.Notify();
        });
    done.WaitForNotification();
    return result;
  }

  void ExpectImage() {
    std::vector<uint8_t> found(image_.size());
    ASSERT_TRUE(pool_->Download(&found).ok());
    const auto at = std::mismatch(found.begin(), found.end(), image_.begin());
    EXPECT_TRUE(at.first == found.end()) << "wrong from byte " << at.first - found.begin();
  }

  std::unique_ptr<DevicePool> pool_;
  std::vector<uint8_t> image_;
};

TEST_F(CopierTest, RangesOfAnySizeAndAlignmentAreCopiedExactly) {
  auto copier = Copier::Start({});
  ASSERT_TRUE(copier.ok()) << copier.status();
  for (const uint64_t most : {3, 40, 700, 5000, 200000}) {
    for (const uint64_t skew : {0, 1, 2, 4, 8, 13}) {
      for (const uint64_t gap : {0, 3}) {
        const std::vector<Copy> copies = RandomCopies(most, skew, gap);
        ASSERT_TRUE(Run(copier->get(), copies).ok());
        ExpectImage();
        if (HasFailure()) FAIL() << "up to " << most << " bytes, skew " << skew << ", gap " << gap;
      }
    }
  }
}

TEST_F(CopierTest, ListsLongerThanASlotRunInRounds) {
  CopierOptions options;
  options.slots = 1;
  options.copies_per_launch = 100;
  auto copier = Copier::Start(options);
  ASSERT_TRUE(copier.ok()) << copier.status();
  ASSERT_TRUE(Run(copier->get(), RandomCopies(4000, 16, 16)).ok());
  ExpectImage();
}

TEST_F(CopierTest, CallsComeInOrderAndStopWaitsForThem) {
  auto copier = Copier::Start({});
  ASSERT_TRUE(copier.ok()) << copier.status();
  const std::vector<Copy> copies = RandomCopies(4096, 0, 0);
  std::vector<int> calls;
  for (int i = 0; i < 4; ++i) {
    (*copier)->Add(
        static_cast<uint32_t>(i),
        [&](std::vector<Copy>* list) {
          *list = copies;
          return absl::OkStatus();
        },
        [&calls, i](const absl::Status& status) { calls.push_back(status.ok() ? 2 * i : -1); });
    (*copier)->Then([&calls, i] { calls.push_back(2 * i + 1); });
  }
  (*copier)->Stop();
  EXPECT_EQ(calls, std::vector<int>({0, 1, 2, 3, 4, 5, 6, 7}));
  ExpectImage();
}

TEST_F(CopierTest, FailureIsToldAndNothingIsCopiedAfterIt) {
  auto copier = Copier::Start({});
  ASSERT_TRUE(copier.ok()) << copier.status();
  std::vector<absl::Status> results;
  const std::vector<absl::Status> lists = {absl::InternalError("a bad piece"), absl::OkStatus()};
  for (uint32_t i = 0; i < lists.size(); ++i) {
    (*copier)->Add(
        i, [listed = lists[i]](std::vector<Copy>*) { return listed; },
        [&](const absl::Status& status) { results.push_back(status); });
  }
  (*copier)->Stop();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0], absl::InternalError("a bad piece"));
  EXPECT_EQ(results[1], absl::InternalError("a bad piece"));
}

}  // namespace
}  // namespace kvstream::cuda
