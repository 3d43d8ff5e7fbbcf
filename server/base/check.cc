#include "server/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvstream {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "kvstream: invariant broken at %s:%d: %s\n", file, line, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvstream
