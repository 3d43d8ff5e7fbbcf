// What happened in a simulation, and the first broken promise. Every event goes into a digest, so
// that two runs can be compared; its text is made only where somebody wants to read it.
//
// Thread rule: one thread.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "server/base/types.h"

namespace kvstream::sim {

class Journal {
 public:
  // Of a trace, this many last lines are kept.
  static constexpr size_t kLinesMax = 4000;

  explicit Journal(bool tracing) : tracing_(tracing) {}

  TimeNs now() const { return now_; }
  void set_now(TimeNs now) { now_ = now; }

  template <typename... Args>
  void Note(fmt::format_string<const Args&...> text, const Args&... args) {
    Mix(static_cast<uint64_t>(now_));
    (MixOne(args), ...);
    if (tracing_) Keep(fmt::format(text, args...));
  }

  // The run ends at the first of these.
  void Fail(std::string_view what) {
    if (!violation_.empty()) return;
    violation_ = fmt::format("at {} us: {}", now_ / kMicrosecond, what);
    if (tracing_) Keep(fmt::format("BROKEN: {}", what));
  }

  const std::string& violation() const { return violation_; }
  bool failed() const { return !violation_.empty(); }
  uint64_t digest() const { return digest_; }
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  void Mix(uint64_t value) {
    digest_ = (digest_ ^ value) * 0x9e3779b97f4a7c15;
    digest_ ^= digest_ >> 29;
  }
  template <typename T>
  void MixOne(const T& value) {
    if constexpr (std::integral<T> || std::is_enum_v<T>) {
      Mix(static_cast<uint64_t>(value));
    } else {
      for (const char c : std::string_view(value)) Mix(static_cast<unsigned char>(c));
    }
  }
  void Keep(std::string line) {
    lines_.push_back(fmt::format("{:>10} us  {}", now_ / kMicrosecond, line));
    if (lines_.size() > kLinesMax) lines_.pop_front();
  }

  const bool tracing_;
  TimeNs now_ = 0;
  uint64_t digest_ = 1;
  std::string violation_;
  std::deque<std::string> lines_;
};

}  // namespace kvstream::sim
