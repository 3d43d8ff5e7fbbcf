// KV_CHECK: our own invariants. An environment that fails is a Status; a broken invariant ends the
// process at once, before it can hand out wrong bytes.
#pragma once

namespace kvstream {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace kvstream

#define KV_CHECK(condition)                                    \
  do {                                                         \
    if (!(condition)) [[unlikely]] {                           \
      ::kvstream::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                          \
  } while (false)
