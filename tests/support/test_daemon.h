// A daemon of the test's own: real tiers in temporary directories, a real socket, in this process.
// And a worker that uses it as an engine's rank would, with chunks whose bytes follow from their
// keys, so that a wrong byte shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "server/config/options.h"
#include "server/daemon.h"
#include "tests/support/fake_gpu.h"

namespace kvstream {

// A directory that goes with the test.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Threads where $KVSTREAM_TEST_IO_ENGINE is "threads", else io_uring: ctest runs each test with
// both.
config::IoEngine EngineUnderTest();

class TestDaemon {
 public:
  using Tweak = std::function<void(config::Options&)>;
  // Two tiers, a pool of 64 MiB, no metrics; `tweak` changes what a test needs otherwise.
  // `gpus`: how many fake GPUs it has, which the control is for.
  explicit TestDaemon(Tweak tweak = nullptr, uint32_t gpus = 0);
  // Stops it, and expects that nothing is left over: no session, lease, buffer or used slot.
  ~TestDaemon();

  // Stops it, if it runs, and starts it anew, with what `tweak` changes.
  void Restart(const Tweak& tweak = nullptr);
  void Stop();
  // The same as Restart after a crash before the first index snapshot: files are found by a walk,
  // which is over when it returns.
  void RestartWithoutSnapshots();
  Daemon& daemon() { return *daemon_; }
  const engine::EngineStats& stats() const { return daemon_->stats(); }
  const config::Options& options() const { return options_; }
  gpu::FakeGpuControl& gpu_control() { return *gpu_control_; }
  std::string socket() const { return options_.grpc_socket; }
  std::filesystem::path root(size_t tier) const { return options_.tiers[tier].root; }
  // Published files of a tier, sorted.
  std::vector<std::filesystem::path> Files(size_t tier) const;
  // Waits until the staging pool is empty: all writes are done.
  void WaitWritten();
  void WaitUntil(const std::function<bool()>& condition, const char* what);

 private:
  TempDir dir_;
  config::Options options_;
  const uint32_t gpus_;
  const std::shared_ptr<gpu::FakeGpuControl> gpu_control_;
  std::unique_ptr<Daemon> daemon_;
};

// A daemon with these options and no GPU.
absl::StatusOr<std::unique_ptr<Daemon>> StartWithoutGpus(const config::Options& options);

// One client with a namespace and a host buffer.
class Worker {
 public:
  struct Shape {
    uint64_t chunk_bytes = 256 * 1024;
    uint64_t segment_bytes = 64 * 1024;
    uint64_t buffer_bytes = 32 * 1024 * 1024;
    // Of all that it stores, reads and looks up.
    std::string salt = "";
    // Another computation of the same keys has other bytes.
    uint64_t computation = 0;
    std::function<void(v1::Namespace*)> change_namespace = nullptr;
  };
  explicit Worker(const std::string& socket) : Worker(socket, Shape()) {}
  Worker(const std::string& socket, const Shape& shape);

  Client& client() { return *client_; }
  const Shape& shape() const { return shape_; }
  HostBuffer& buffer() { return buffer_; }
  const std::string& namespace_id() const { return namespace_.id; }
  size_t slots() const { return shape_.buffer_bytes / shape_.chunk_bytes; }

  // Chunk `key` at slot `slot` of the buffer.
  v1::ChunkAt At(uint64_t key, size_t slot) const;
  v1::Store StoreOf(const std::vector<uint64_t>& keys, size_t first_slot = 0) const;
  // One request with all keys.
  v1::ReadStep StepOf(const std::vector<uint64_t>& keys, size_t first_slot = 0) const;

  // Writes the chunk's bytes into the slot; checks them; overwrites them.
  void Fill(uint64_t key, size_t slot);
  bool Holds(uint64_t key, size_t slot) const { return Holds(key, slot, shape_.computation); }
  bool Holds(uint64_t key, size_t slot, uint64_t computation) const;
  void Poison(size_t slot, uint8_t value = 0xAB);
  bool IsPoisoned(size_t slot, uint8_t value = 0xAB) const;

  // Stores the chunks and waits for the end; with `durable` that means published.
  absl::Status Put(const std::vector<uint64_t>& keys, bool durable = true);
  // Reads the chunks into slots 0.. and returns the one request's outcome.
  v1::RequestDone Get(const std::vector<uint64_t>& keys);
  // Leading chunks present.
  uint32_t Look(const std::vector<uint64_t>& keys);

 private:
  std::byte* SlotAt(size_t slot) const { return buffer_.data() + slot * shape_.chunk_bytes; }

  Shape shape_;
  std::unique_ptr<Client> client_;
  NamespaceHandle namespace_;
  HostBuffer buffer_;
};

// Keys first .. first + count - 1.
std::vector<uint64_t> Keys(uint64_t first, size_t count);

// Longer than anything here takes on a loaded machine.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace kvstream
