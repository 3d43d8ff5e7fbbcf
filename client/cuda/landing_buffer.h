// The worker's landing buffer: GPU memory in equal parts, registered with the daemon. For regions
// of short runs the daemon lands bytes in a part and this scatters them, or this gathers bytes into
// a part and the daemon copies them out; both on a stream and a thread of its own.
//
//   auto landing = LandingBuffer::Create(client.get(), {.device = 0});
//   auto memory = ShareDeviceMemory(client.get(), kv, kv_bytes);
//   ... add the tensors, with memory->offset ...
//   auto region = (*landing)->RegisterRegion(*memory);
//
// It cannot know the engine's streams. Before a Store the caller has waited for what wrote the
// source blocks, and before a ReadStep for what still reads the destination's.
//
// A copy that fails leaves bytes that nobody may use: it is not acknowledged, and the session ends
// with the cause.
//
// Thread rule: any thread; RegisterRegion and UnregisterRegion block as the client's calls do.
// Ownership: the client shares it until its own end, whether or not the caller keeps it. Does not
// own the regions' memory. At its end it frees its memory, unless a daemon that did not answer may
// still have it open: then it leaves it to the process's end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"
#include "client/cuda/copier.h"
#include "client/cuda/device_memory.h"
#include "client/landing_handler.h"
#include "client/region_layout.h"

namespace kvstream::cuda {

struct LandingOptions {
  int device = 0;
  // 1 .. 64, of so many bytes each.
  uint32_t parts = 4;
  uint64_t part_bytes = uint64_t{64} << 20;
  CopyGrid grid;
  // As CopierOptions.
  int stream_priority = CopierOptions().stream_priority;
};

class LandingBuffer final : public LandingHandler {
 public:
  // Allocates, registers, and becomes the client's landing handler: before the regions that need
  // it, and once for each client.
  static absl::StatusOr<std::shared_ptr<LandingBuffer>> Create(Client* client,
                                                               const LandingOptions& options);
  LandingBuffer(const LandingBuffer&) = delete;
  LandingBuffer& operator=(const LandingBuffer&) = delete;
  ~LandingBuffer() override;

  // Registers the engine's memory, which `memory.request` describes with its tensors, and serves it
  // if it goes by the landing buffer. A region that goes directly needs nothing more of this.
  absl::StatusOr<RegionHandle> RegisterRegion(const DeviceMemory& memory) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns when neither the daemon nor a copy touches the region; only then may it be freed.
  absl::Status UnregisterRegion(uint64_t region_id) ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t region_id() const { return region_id_; }
  // Parts that were scattered and gathered.
  uint64_t scattered() const ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t gathered() const ABSL_LOCKS_EXCLUDED(mu_);

  // For Client.
  void OnRead(const v1::ReadStep& step) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnStore(const v1::Store& store) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnLanded(const v1::Landed& landed) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnGather(const v1::Gather& gather) override ABSL_LOCKS_EXCLUDED(mu_);
  void AfterCopies(uint64_t operation_id, bool ended, absl::AnyInvocable<void()> then) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void Detach(bool let_go) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Region {
    Region(uint64_t base_address, const v1::RegisterMemoryRequest& request)
        : base(base_address), layout(request) {}
    const uint64_t base;
    const RegionLayout layout;
  };

  // Where a chunk lies; the region is null when it is none of ours.
  struct ChunkPlace {
    std::shared_ptr<const Region> region;
    std::vector<uint32_t> blocks;
  };
  // By request and chunk; a store has one request.
  using Places = std::vector<std::vector<ChunkPlace>>;

  struct RunningOperation {
    std::shared_ptr<const Places> places;
    // Copies and calls of AfterCopies that have not run.
    uint32_t waiting = 0;
    bool ended = false;
  };

  enum class Direction { kScatter, kGather };

  // What the daemon asks for: a Landed or a Gather.
  struct Transfer {
    Direction direction = Direction::kScatter;
    uint64_t operation_id = 0;
    uint32_t part = 0;
    uint64_t sequence = 0;
    std::vector<v1::Piece> pieces;
    std::shared_ptr<const Places> places;
  };

  LandingBuffer(Client* client, const LandingOptions& options);
  absl::Status Open();

  std::vector<ChunkPlace> PlacesOf(const google::protobuf::RepeatedPtrField<v1::ChunkAt>& chunks)
      const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Keep(uint64_t operation_id, Places places) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  template <typename Message>
  void Begin(Direction direction, const Message& message) ABSL_LOCKS_EXCLUDED(mu_);
  // One waiting thing of the operation has run.
  void Settle(uint64_t operation_id) ABSL_LOCKS_EXCLUDED(mu_);
  void Answer(const Transfer& transfer);

  // On the copier's thread.
  absl::Status ListCopies(const Transfer& transfer, std::vector<Copy>* copies) const;
  void OnCopied(const Transfer& transfer, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // Not called after Detach.
  Client* const client_;
  const LandingOptions options_;
  // Written by Create alone.
  uint64_t base_ = 0;
  uint64_t region_id_ = 0;
  std::unique_ptr<Copier> copier_;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<const Region>> regions_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, RunningOperation> operations_ ABSL_GUARDED_BY(mu_);
  // Parts whose copy runs.
  std::vector<bool> busy_ ABSL_GUARDED_BY(mu_);
  bool detached_ ABSL_GUARDED_BY(mu_) = false;
  bool let_go_ ABSL_GUARDED_BY(mu_) = true;
  uint64_t scattered_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t gathered_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvstream::cuda
