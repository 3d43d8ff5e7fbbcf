// Registered memory larger than the kernel takes in one piece.
#include "server/tier/uring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "gtest/gtest.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

// Where the second slice begins.
constexpr uint64_t kBorder = kGiB;
constexpr uint64_t kWindow = 4 * kMiB;

// A slice and the beginning of another, of which only the last kWindow before the border, and what
// is behind it, are memory of their own: all before that is the same few pages again and again.
class TwoSlices {
 public:
  TwoSlices() : file_(memfd_create("two-slices", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_.get(), 2 * kWindow), 0);
    void* const at = mmap(nullptr, kBorder + kWindow, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    bytes_ = {static_cast<std::byte*>(at), kBorder + kWindow};
    for (uint64_t offset = 0; offset < bytes_.size(); offset += kWindow) {
      const off_t from = offset == kBorder ? kWindow : 0;
      EXPECT_NE(mmap(bytes_.data() + offset, kWindow, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, file_.get(), from),
                MAP_FAILED);
    }
  }
  ~TwoSlices() { munmap(bytes_.data(), bytes_.size()); }
  TwoSlices(const TwoSlices&) = delete;
  TwoSlices& operator=(const TwoSlices&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  std::byte* border() const { return bytes_.data() + kBorder; }

 private:
  const UniqueFd file_;
  std::span<std::byte> bytes_;
};

class UringTest : public testing::Test {
 protected:
  void SetUp() override {
    auto ring = Uring::Create(8);
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
    fd_.Reset(open((folder_.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd_.valid());
  }

  int32_t Transfer(Operation::Kind kind, std::byte* data, uint32_t length) {
    Operation transfer;
    transfer.kind = kind;
    transfer.fd = fd_.get();
    transfer.data = data;
    transfer.length = length;
    EXPECT_TRUE(ring_->Queue(transfer, 1));
    IoQueue::Event event;
    do {
      ring_->Submit(/*wait=*/true);
    } while (ring_->Take({&event, 1}) == 0);
    return event.result;
  }

  TemporaryFolder folder_;
  UniqueFd fd_;
  std::unique_ptr<Uring> ring_;
};

TEST_F(UringTest, TransfersAcrossTheBorderOfTwoSlicesAreExact) {
  const TwoSlices memory;
  if (const int error = ring_->RegisterBuffers(memory.bytes()); error != 0) {
    GTEST_SKIP() << "registering 1 GiB needs CAP_IPC_LOCK or as much RLIMIT_MEMLOCK: "
                 << std::strerror(error);
  }
  constexpr auto kLength = static_cast<uint32_t>(256 * kKiB);
  const auto same = [](const std::byte* a, const std::byte* b) {
    return std::memcmp(a, b, kLength) == 0;
  };
  const Blocks outside = Blocks::Pattern(kLength, 7);
  const Blocks copy(kLength);
  // Before the border, up to it, across it by one byte and by half, from it on, and at the end.
  for (const int64_t at :
       {-2 * int64_t{kLength}, -int64_t{kLength}, 1 - int64_t{kLength}, -int64_t{kLength} / 2,
        int64_t{-1}, int64_t{0}, static_cast<int64_t>(kWindow - kLength)}) {
    SCOPED_TRACE(at);
    std::byte* const inside = memory.border() + at;
    ASSERT_EQ(Transfer(Operation::Kind::kWrite, outside.data(), kLength), kLength);
    std::memset(memory.border() - kWindow, 0xDB, 2 * kWindow);
    ASSERT_EQ(Transfer(Operation::Kind::kRead, inside, kLength), kLength);
    EXPECT_TRUE(same(inside, outside.data()));
    const auto untouched = [](std::byte b) { return b == std::byte{0xDB}; };
    EXPECT_TRUE(std::all_of(memory.border() - kWindow, inside, untouched));
    EXPECT_TRUE(std::all_of(inside + kLength, memory.border() + kWindow, untouched));
    inside[kLength / 3] ^= std::byte{0xFF};
    ASSERT_EQ(Transfer(Operation::Kind::kWrite, inside, kLength), kLength);
    ASSERT_EQ(Transfer(Operation::Kind::kRead, copy.data(), kLength), kLength);
    EXPECT_TRUE(same(copy.data(), inside));
  }
}

}  // namespace
}  // namespace kvstream::tier
