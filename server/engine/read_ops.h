// ReadStep operations: from the client's chunks to a routed batch, from the router's commands to
// reads and copies, and from their ends back to the client's events. The deciding is the router's.
//
// Thread rule: the engine loop.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/container/node_hash_map.h"
#include "server/base/quiet_period.h"
#include "server/base/types.h"
#include "server/engine/api.h"
#include "server/engine/asides.h"
#include "server/engine/copy_pool.h"
#include "server/engine/device_copies.h"
#include "server/engine/kept_segments.h"
#include "server/engine/sessions.h"
#include "server/engine/staging.h"
#include "server/engine/stats.h"
#include "server/sched/router.h"
#include "server/store/chunk_index.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

class ReadOps : private sched::SegmentKeeper {
 public:
  struct Parts {
    std::vector<tier::Tier*> tiers;
    sched::SlotAllocator* slots = nullptr;
    std::byte* pool = nullptr;
    store::ChunkIndex* index = nullptr;
    Staging* staging = nullptr;
    Asides* asides = nullptr;
    CopyPool* copies = nullptr;
    DeviceCopies* device = nullptr;
    Sessions* sessions = nullptr;
    EngineStats* stats = nullptr;
  };
  ReadOps(const Parts& parts, const sched::RouterOptions& options);

  // Registers the operation with the session and routes it; a refusal names the field, and leaves
  // nothing behind.
  absl::Status Begin(Session& session, OperationId id, ReadStep step, TimeNs now);
  // No-op for an id that is not a running ReadStep.
  void Cancel(OperationId id, TimeNs now) { router_.Fail(id, absl::StatusCode::kCancelled, now); }

  // Of a read in flight.
  const ContentId& ContentOf(Ticket read) const { return reads_.at(read).content; }
  void OnRead(const tier::Completion& completion, TimeNs now);
  void OnSegmentCopied(const CopyResult& result, TimeNs now);
  void OnStagedCopied(const CopyResult& result, TimeNs now);
  void OnDeviceCopied(const DeviceResult& result, TimeNs now);

  // Takes a tier out of service or brings it back, for reads and writes.
  void SetTierInService(TierId tier, bool in_service, TimeNs now);

  // Executes what the router decided, until it has nothing more to say. Reads and results are
  // gathered for SubmitReads.
  void Pump(TimeNs now);
  // Gives up slots of chunks that are not whole yet. sched::SlotAllocator::Reclaim.
  bool GiveUpKept(sched::Arena arena) { return kept_.GiveUpOne(arena); }

  // At the end of a turn: submits the reads and sends the results of the turn.
  void SubmitReads();

  sched::Router& router() { return router_; }
  const sched::Router& router() const { return router_; }
  size_t running() const { return operations_.size(); }

 private:
  // One content being read: what its segments must be, and where they are.
  struct ContentPlan {
    KeyDigest key;
    NamespaceId name_space;
    std::string path;
    ChunkShape shape;
    std::vector<uint64_t> checksums;
    uint32_t uses = 0;  // Items, reads and copies that need it.
  };
  struct ItemPlace {
    Place place;
    KeyDigest key;
    absl::InlinedVector<ContentId, 1> contents;
    StagedId staged;      // 0: none.
    bool pinned = false;  // Until the item is done.
  };
  struct Request {
    uint64_t request_id = 0;
    std::vector<ItemPlace> items;
  };
  struct Operation {
    SessionId session;
    uint64_t client_op = 0;
    TimeNs began = 0;
    std::vector<Request> requests;
    MemoryInUse memory;
    bool ended_early = false;  // What is not delivered yet will not be.
    ChunkResults unsent;
    absl::StatusCode first_failure = absl::StatusCode::kOk;
    uint32_t first_failed_request = UINT32_MAX;
  };
  struct ReadInFlight {
    ContentId content;
    uint32_t segment = 0;
    TierId tier;
    sched::Slot slot;
    // Of the replica as it began.
    uint16_t generation = 0;
    uint32_t copies = 0;  // Of its slot: SegmentCopy entries.
  };
  // A command to copy a segment. Each operation in it is answered on its own: one worker may be
  // slow to scatter.
  struct SegmentCopy {
    Ticket ticket;
    absl::InlinedVector<sched::ItemRef, 2> items;
    size_t left = 0;  // Items that are not answered.
    struct ToDevice {
      OperationId operation;
      uint32_t left = 0;
    };
    std::vector<ToDevice> to_device;
  };
  struct StagedCopy {
    sched::ItemRef item;
    StagedId chunk;
    uint32_t left = 0;        // Segments whose copy has not ended.
    uint32_t unverified = 0;  // Segments that the copy pool has.
    bool ok = true;
  };

  bool Keep(const ContentId& content, uint32_t segment, const sched::Slot& slot) override;
  absl::Status PlaceItems(Session& session, ReadStep* step, Operation* operation);
  sched::Item PlanItem(const ReadRequest& request, const ReadChunk& chunk, ItemPlace* place);
  sched::Sources PlanSources(ItemPlace* place, const NamespaceId& name_space,
                             const ChunkShape& shape, bool pin);
  void LetGo(ItemPlace& place);
  // Where an item's bytes go; null once its operation has ended early.
  const Place* PlaceOf(const sched::ItemRef& ref) const;
  // Answers the router: some of a segment's copies have ended, or a staged chunk's segment.
  void EndCopies(uint64_t copy, std::span<const sched::ItemRef> items, absl::StatusCode code,
                 TimeNs now);
  // A read has met damage: counts it, and warns.
  void NoteDamage(const ReadInFlight& read);
  void WarnIfNoneInService();
  void MaybeForget(Ticket read);
  void EndStagedPart(uint64_t id, bool verified, TimeNs now);
  void CopyToDevice(CopyKind kind, uint64_t id, uint32_t part, const sched::ItemRef& ref,
                    uint64_t offset, std::span<std::byte> bytes);
  void Execute(const sched::ReadSegment& command);
  void Execute(const sched::CopySegment& command);
  void Execute(const sched::CopyStaged& command);
  void Execute(const sched::ReplicaFailed& command);
  void Execute(const sched::ItemDone& command);
  void Execute(const sched::RequestDone& command);
  void Execute(const sched::BatchDone& command);
  void Execute(const sched::TierOut& command);
  void Execute(const sched::TierBack& command);
  void SendResults(Operation& operation);
  void Use(const ContentId& content) { plans_.at(content).uses += 1; }
  void EndUse(const ContentId& content);

  const Parts parts_;
  KeptSegments kept_;
  sched::Router router_;
  std::vector<sched::Command> commands_;  // Of the pump.
  absl::flat_hash_map<OperationId, Operation> operations_;
  // Nodes: a plan's path is named by reads in flight.
  absl::node_hash_map<ContentId, ContentPlan> plans_;
  absl::flat_hash_map<Ticket, ReadInFlight> reads_;
  absl::flat_hash_map<uint64_t, SegmentCopy> segment_copies_;
  absl::flat_hash_map<uint64_t, StagedCopy> staged_copies_;
  uint64_t next_copy_ = 1;                                 // Of both kinds.
  std::vector<std::vector<tier::ReadRequest>> to_submit_;  // By TierId.
  std::vector<OperationId> with_unsent_;
  // Of warnings about failing reads, and about damage.
  std::array<QuietPeriod, kTiersMax> failures_quiet_;
  std::array<QuietPeriod, kTiersMax> damage_quiet_;
  bool none_in_service_ = false;  // And that was said.
  TimeNs now_ = 0;                // Of the turn.
};

}  // namespace kvstream::engine
