// A worker with memory on a fake GPU, as an engine's rank would use it: paged KV in a region, and a
// landing buffer whose kernels are plain loops. The bytes of a chunk follow from its key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/landing_handler.h"
#include "client/region_layout.h"
#include "tests/support/fake_gpu.h"

namespace kvstream {

// Scatters and gathers on the client's thread; or keeps what it is asked for until told.
class FakeLanding final : public LandingHandler {
 public:
  FakeLanding(gpu::FakeGpuMemory* landing, uint32_t parts) : landing_(*landing), parts_(parts) {}

  void Use(Client* client, gpu::FakeGpuMemory* kv, const v1::RegisterMemoryRequest& region);
  // What comes from now on waits; Answer serves it.
  void Hold() { held_ = true; }
  void Answer() ABSL_LOCKS_EXCLUDED(mu_);
  // Asked for and not answered.
  size_t waiting() const ABSL_LOCKS_EXCLUDED(mu_);

  void OnRead(const v1::ReadStep& step) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnStore(const v1::Store& store) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnLanded(const v1::Landed& landed) override { Take({landed, {}, false}); }
  void OnGather(const v1::Gather& gather) override { Take({{}, gather, true}); }
  void AfterCopies(uint64_t, bool, absl::AnyInvocable<void()> then) override { then(); }
  void Detach(bool) override {}

 private:
  struct Asked {
    v1::Landed landed;
    v1::Gather gather;
    bool is_gather = false;
  };
  void Take(Asked asked) ABSL_LOCKS_EXCLUDED(mu_);
  void Serve(const Asked& asked) ABSL_LOCKS_EXCLUDED(mu_);
  template <typename Message>
  void Move(const Message& message, bool scatter) ABSL_LOCKS_EXCLUDED(mu_);

  gpu::FakeGpuMemory& landing_;
  const uint32_t parts_;
  Client* client_ = nullptr;
  gpu::FakeGpuMemory* kv_ = nullptr;
  std::unique_ptr<RegionLayout> layout_;
  std::atomic<bool> held_{false};
  mutable absl::Mutex mu_;
  // Blocks by operation, request and chunk.
  absl::flat_hash_map<uint64_t, std::vector<std::vector<std::vector<uint32_t>>>> blocks_
      ABSL_GUARDED_BY(mu_);
  std::vector<Asked> waiting_ ABSL_GUARDED_BY(mu_);
};

class DeviceWorker {
 public:
  struct Shape {
    uint32_t gpu = 0;
    uint32_t layers = 4;
    // Keys and values apart, so many bytes of each in a block of a layer.
    uint64_t run_bytes = 8192;
    uint32_t blocks = 64;
    uint32_t blocks_per_chunk = 4;
    uint64_t segment_bytes = 64 * 1024;
    // 0: none.
    uint32_t landing_parts = 0;
    uint64_t landing_part_bytes = 48 * 1024;
    // Memory comes by the handoff socket.
    bool vmm = false;
  };
  DeviceWorker(const std::string& socket, const Shape& shape);
  ~DeviceWorker();

  Client& client() { return *client_; }
  const Shape& shape() const { return shape_; }
  FakeLanding& landing() { return *landing_; }
  gpu::FakeGpuMemory& kv() { return kv_; }
  const RegionHandle& region() const { return region_; }
  const RegionHandle& landing_region() const { return landing_region_; }
  const std::string& namespace_id() const { return namespace_.id; }
  uint64_t chunk_bytes() const;
  v1::RegisterMemoryRequest Describe() const;

  v1::ChunkAt At(uint64_t key, const std::vector<uint32_t>& blocks) const;
  // Chunk i of the keys in the i-th of `tables`.
  using Tables = std::vector<std::vector<uint32_t>>;
  v1::Store StoreOf(const std::vector<uint64_t>& keys, const Tables& tables) const;
  v1::ReadStep StepOf(const std::vector<uint64_t>& keys, const Tables& tables) const;
  // Disjoint tables of random blocks.
  Tables Shuffled(size_t chunks, uint32_t seed) const;

  void Fill(uint64_t key, const std::vector<uint32_t>& blocks);
  bool Holds(uint64_t key, const std::vector<uint32_t>& blocks) const;
  void Poison();
  // Whether every byte outside these blocks is still the poison.
  bool OnlyTouched(const Tables& tables) const;

  // Both wait for the end.
  absl::Status Put(const std::vector<uint64_t>& keys, const Tables& tables);
  v1::RequestDone Get(const std::vector<uint64_t>& keys, const Tables& tables);

 private:
  const Shape shape_;
  gpu::FakeGpuMemory kv_;
  std::unique_ptr<gpu::FakeGpuMemory> landing_memory_;
  std::unique_ptr<RegionLayout> layout_;
  std::shared_ptr<FakeLanding> landing_;
  std::unique_ptr<Client> client_;
  NamespaceHandle namespace_;
  RegionHandle landing_region_;
  RegionHandle region_;
};

// Short runs, which go through a landing buffer; and long ones, straight into the blocks.
DeviceWorker::Shape LandingShape(uint32_t gpu = 0);
DeviceWorker::Shape DirectShape(uint32_t gpu = 0);

}  // namespace kvstream
