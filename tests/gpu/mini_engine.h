// A stand-in for a rank of an inference engine: paged KV on the GPU in a layout of choice,
// registered with a daemon, its chunks stored and loaded in any blocks.
//
// Thread rule: one thread. Ownership: owns the session, the landing buffer and the pool; the pool
// goes after the session has let go of it.
// Errors: those of Client and client/cuda; what a chunk's outcome says, with the chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/cuda/landing_buffer.h"
#include "tests/gpu/device_pool.h"
#include "tests/gpu/kv_layouts.h"

namespace kvstream {

struct MiniEngineOptions {
  // The daemon's gRPC socket.
  std::string socket;
  std::string client_name = "mini-engine";
  std::string layout = "paired";
  KvShape shape;
  PoolKind pool = PoolKind::kMalloc;
  int device = 0;
  // Blocks of a chunk.
  uint32_t chunk_blocks = 4;
  // 0 means the daemon's default.
  uint64_t segment_bytes = 0;
  // Of content and keys: the same seed, layout and shape store the same bytes under the same keys.
  uint64_t seed = 1;
  // 0 parts means no landing buffer.
  cuda::LandingOptions landing;
  // Deadline of an operation.
  absl::Duration timeout = absl::Seconds(60);
};

// The blocks of each chunk.
using BlockTables = std::vector<std::vector<uint32_t>>;

class MiniEngine {
 public:
  static absl::StatusOr<std::unique_ptr<MiniEngine>> Create(const MiniEngineOptions& options);
  MiniEngine(const MiniEngine&) = delete;
  MiniEngine& operator=(const MiniEngine&) = delete;
  ~MiniEngine();

  Client& client() { return *client_; }
  DevicePool& pool() { return *memory_; }
  const KvPool& layout() const { return layout_; }
  const RegionHandle& region() const { return region_; }
  // Null without one.
  const cuda::LandingBuffer* landing() const { return landing_.get(); }
  uint64_t chunk_bytes() const { return layout_.block_bytes() * options_.chunk_blocks; }

  // Tables for `chunks` chunks out of the pool's blocks, shuffled; no block is in two of them.
  // REQUIRES: the pool has so many blocks.
  BlockTables ShuffledTables(uint32_t chunks, uint64_t seed) const;

  // Begin without waiting: chunk i has key first_key + i. A step has `requests` requests, which
  // share the chunks evenly; it is joint when there is one. The caller has waited for its own use
  // of the blocks.
  absl::StatusOr<std::shared_ptr<StoreOperation>> BeginStore(uint64_t first_key,
                                                             const BlockTables& tables);
  absl::StatusOr<std::shared_ptr<ReadOperation>> BeginRead(uint64_t first_key,
                                                           const BlockTables& tables,
                                                           uint32_t requests = 1);
  // Whole operations; OK when every chunk was staged, or read. `existed` counts chunks that were
  // there before.
  absl::Status Store(uint64_t first_key, const BlockTables& tables, uint64_t* existed = nullptr);
  absl::Status Read(uint64_t first_key, const BlockTables& tables, uint32_t requests = 1);
  // The same, until every chunk is published; and into host memory, chunk after chunk.
  absl::Status StoreDurably(uint64_t first_key, const BlockTables& tables);
  absl::Status ReadToHost(uint64_t first_key, uint32_t chunks, const HostBuffer& buffer);

  // Bytes that follow from the seed.
  std::vector<uint8_t> RandomBytes(uint64_t seed) const;
  // Moves the chunks' bytes of one image of the pool to other blocks of another, as a store and a
  // load should.
  void MoveChunks(const std::vector<uint8_t>& from, const BlockTables& from_tables,
                  const BlockTables& to_tables, std::vector<uint8_t>* to) const;

 private:
  MiniEngine(const MiniEngineOptions& options, KvPool layout);
  absl::Status Open();
  absl::Status RegisterPool();
  absl::Status RegisterModel();
  v1::ChunkAt ChunkAt(uint64_t key, const std::vector<uint32_t>& blocks) const;
  v1::Store StoreOf(uint64_t first_key, const BlockTables& tables) const;
  v1::ReadStep StepOf(uint32_t requests) const;
  absl::Status AwaitStore(const absl::StatusOr<std::shared_ptr<StoreOperation>>& store,
                          uint64_t* existed) const;
  absl::Status AwaitRead(const absl::StatusOr<std::shared_ptr<ReadOperation>>& read) const;

  const MiniEngineOptions options_;
  const KvPool layout_;
  // In this order: the client's end comes first and lets go of the others' memory.
  std::unique_ptr<DevicePool> memory_;
  std::shared_ptr<cuda::LandingBuffer> landing_;
  std::unique_ptr<Client> client_;
  RegionHandle region_;
  NamespaceHandle namespace_;
};

}  // namespace kvstream
