#include "server/store/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvstream::store {
namespace {

TEST(StreamCopyTest, CopiesExactlyTheBytesAtEveryAlignmentAndLength) {
  constexpr size_t kGuard = 128;
  constexpr std::byte kUntouched{0xEE};
  std::vector<std::byte> source(4096 + kGuard);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 + i / 256);
  for (size_t to = 0; to < 64; to += 3) {
    for (size_t from = 0; from < 64; from += 5) {
      for (const size_t bytes : {0u, 1u, 15u, 16u, 63u, 64u, 65u, 127u, 128u, 200u, 1000u, 4032u}) {
        std::vector<std::byte> copy(4096 + 2 * kGuard, kUntouched);
        StreamCopy(copy.data() + kGuard + to, source.data() + from, bytes);
        const auto begin = copy.begin() + kGuard + to;
        ASSERT_TRUE(std::equal(begin, begin + bytes, source.begin() + from))
            << to << " " << from << " " << bytes;
        const auto untouched = [](std::byte b) { return b == kUntouched; };
        ASSERT_TRUE(std::all_of(copy.begin(), begin, untouched));
        ASSERT_TRUE(std::all_of(begin + bytes, copy.end(), untouched));
      }
    }
  }
}

}  // namespace
}  // namespace kvstream::store
