// Calls that may hang in the kernel, such as the first touch of a network file system, with a
// deadline: on a thread of their own, which is left behind when it does not answer.
//
// Thread rule: any thread; `work` runs on another.
// Ownership: `work` must own all that it touches, since it may outlive the call; so must its
// result, which is destroyed where it comes too late.
#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "server/base/types.h"

namespace kvstream {

// For the first touch of a file system: longer than a mount on demand takes.
inline constexpr TimeNs kFirstTouchPatience = 10 * kSecond;

// What `work` returns; nothing if it has not within `patience`.
template <typename Work>
auto RunWithin(TimeNs patience, Work work) -> std::optional<decltype(work())> {
  std::packaged_task<decltype(work())()> task(std::move(work));
  auto answer = task.get_future();
  std::thread thread(std::move(task));
  if (answer.wait_for(std::chrono::nanoseconds(patience)) != std::future_status::ready) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return answer.get();
}

}  // namespace kvstream
