#include "server/base/random.h"

#include <sys/random.h>

#include "server/base/check.h"

namespace kvstream {

std::array<uint8_t, 16> RandomBytes16() {
  std::array<uint8_t, 16> bytes;
  KV_CHECK(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

}  // namespace kvstream
