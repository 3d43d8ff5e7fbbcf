// Clients that store new keys and read old ones until told to stop, and count what is wrong.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/test_daemon.h"

namespace kvstream {

class Load {
 public:
  static constexpr size_t kKeysPerStore = 8;
  static Worker::Shape Shape() {
    return {.chunk_bytes = 64 * 1024, .segment_bytes = 16 * 1024, .buffer_bytes = 4 * 1024 * 1024};
  }

  explicit Load(const std::string& socket);
  ~Load() { Stop(); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  void Stop();

  uint64_t stores() const { return stores_; }
  uint64_t hits() const { return hits_; }
  uint64_t wrong() const { return wrong_; }
  // Keys that were said to be durable.
  std::vector<uint64_t> committed();

 private:
  void Write(const std::string& socket, uint64_t first);
  void Read(const std::string& socket, uint64_t seed);

  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> stores_{0};
  std::atomic<uint64_t> hits_{0};
  std::atomic<uint64_t> wrong_{0};
  std::mutex mu_;
  std::vector<uint64_t> committed_;
  std::vector<std::thread> threads_;
};

}  // namespace kvstream
