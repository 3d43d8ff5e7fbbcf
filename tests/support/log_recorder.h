// What is warned of while a test runs: an spdlog sink that keeps each warning and error, so that a
// test can ask whether a degraded mode said so, and how often.
//
// Thread rule: made before the threads that log, and destroyed after them; its calls from any
// thread. Ownership: it is the default logger for its lifetime, then the one before it is again.
#pragma once

#include <spdlog/spdlog.h>

#include <cstddef>
#include <memory>
#include <string_view>

namespace kvstream::test {

class LogRecorder {
 public:
  LogRecorder();
  LogRecorder(const LogRecorder&) = delete;
  LogRecorder& operator=(const LogRecorder&) = delete;
  ~LogRecorder();

  // Warnings and errors so far that contain `part`; those of level info and below are not kept.
  size_t Count(std::string_view part) const;

 private:
  class Sink;

  const std::shared_ptr<Sink> sink_;
  const std::shared_ptr<spdlog::logger> before_;
};

// Errors alone are logged from now on; or all that a recorder keeps, where there is one.
void LogErrorsOnly();

}  // namespace kvstream::test
