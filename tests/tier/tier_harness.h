// What the tests of tiers share: a sink that records, aligned memory, a folder of its own for each
// test, and a tier of any kind behind one face.
//
// Thread rule: the test's thread; Recorder::OnCompletions from any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "server/tier/tier.h"

namespace kvstream::tier {

class Recorder final : public CompletionSink {
 public:
  void OnCompletions(std::span<Completion> completions) override;
  // Blocks until `n` completions have come in all.
  void Await(size_t n);
  size_t count();
  // All so far, in order of arrival.
  std::vector<Completion> completions();

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::vector<Completion> completions_;
};

// Memory for requests, aligned as they must be, zeroed.
class Blocks {
 public:
  explicit Blocks(uint64_t bytes);
  // Bytes that depend on `seed` and on nothing else.
  static Blocks Pattern(uint64_t bytes, uint64_t seed);

  std::byte* data() const { return data_.get(); }
  uint64_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_.get(), size_}; }
  std::span<const std::byte> Part(uint64_t offset, uint64_t length) const {
    return bytes().subspan(offset, length);
  }
  std::vector<std::byte> Copy() const { return {data_.get(), data_.get() + size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  uint64_t size_;
};

// An empty folder that goes away with all in it.
class TemporaryFolder {
 public:
  // Below `parent`, or the folder of temporary files.
  explicit TemporaryFolder(std::string parent = "");
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  // Paths below it of all plain files, sorted.
  std::vector<std::string> Files() const;

 private:
  std::string path_;
};

// A tier under test.
class Harness {
 public:
  virtual ~Harness() = default;

  virtual Tier& tier() = 0;
  // Lets `n` completions come in all, and returns all that have come.
  virtual std::vector<Completion> Await(size_t n) = 0;
  virtual bool Exists(const std::string& path) = 0;
  virtual std::vector<std::byte> Contents(const std::string& path) = 0;
  virtual void Truncate(const std::string& path, uint64_t bytes) = 0;
  // A time by which everything that can end has ended.
  virtual TimeNs PatientDeadline() = 0;

  // Writes a file of one header block and `payload`, and waits. The code of its completion.
  absl::StatusCode Write(const std::string& path, const Blocks& file);
  // Reads `length` bytes at `offset`, and waits.
  Completion Read(const std::string& path, uint64_t offset, std::span<std::byte> into);
  Completion SetAside(const std::string& path, std::function<absl::StatusOr<bool>(int)> damaged);
  Ticket NextTicket() { return Ticket{++tickets_}; }
  // How many completions have been waited for.
  size_t awaited = 0;

 private:
  uint64_t tickets_ = 0;
};

std::unique_ptr<Harness> MakeFakeHarness(const TierOptions& options);
std::unique_ptr<Harness> MakeUringHarness(const TierOptions& options);
std::unique_ptr<Harness> MakeThreadsHarness(const TierOptions& options);

}  // namespace kvstream::tier
