// Staged chunks: complete in the staging pool, readable from there, and on their way to the tiers.
// What is published, or was read, stays there for as long as nobody else wants its slots: the DRAM
// cache. Without one a chunk leaves the pool when no write of it is owed or running and nobody
// reads it from there.
//
// Thread rule: the engine loop.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/base/quiet_period.h"
#include "server/base/types.h"
#include "server/engine/asides.h"
#include "server/engine/dram_cache.h"
#include "server/engine/evictor.h"
#include "server/engine/stats.h"
#include "server/sched/slot_allocator.h"
#include "server/sched/write_queue.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_index.h"
#include "server/store/chunk_key.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

using sched::StagedId;

// Who wants to know when a chunk is published.
struct DurableWaiter {
  OperationId operation;
  uint32_t chunk_index = 0;
};

struct DurableNotice {
  DurableWaiter waiter;
  // OK: published. UNAVAILABLE: every write failed, the key is withdrawn.
  absl::StatusCode code = absl::StatusCode::kOk;
};

// A chunk whose bytes have just become complete.
struct NewChunk {
  std::string encoded_key;  // Empty where it was read: it is not written any more.
  KeyDigest key;
  SiblingsId siblings;
  NamespaceId name_space;
  ChunkShape shape;
  std::vector<sched::Slot> slots;  // One a segment; the queue owns them from here on.
  std::vector<uint64_t> checksums;
};

struct StagedChunk : NewChunk {
  StagedId id;
  ContentId content;
  std::string path;
  uint32_t pins = 0;
  bool durable = false;
  bool finished = false;  // No write is owed: it goes as soon as nobody pins it, unless retained.
  bool retained = false;  // In the DRAM cache.
  bool shared = false;    // With a slot in the shared arena.
  bool damaged = false;   // In the pool.
  std::vector<DurableWaiter> waiters;
};

class Staging {
 public:
  struct Parts {
    std::vector<tier::Tier*> tiers;
    sched::SlotAllocator* slots = nullptr;
    std::byte* pool = nullptr;
    store::ChunkIndex* index = nullptr;
    Asides* asides = nullptr;
    // Null: a write that finds no room has failed.
    Evictor* evictor = nullptr;
    EngineStats* stats = nullptr;
    // Null: there is none.
    std::unique_ptr<DramCache> cache;
    // What is met there may be another node's.
    TierSet shared_tiers;
  };
  Staging(Parts parts, const sched::WriteQueueOptions& options);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Makes the chunk visible and owes its copies.
  StagedId Add(NewChunk chunk, TimeNs now);

  // The visible staged chunk of a key; null when there is none.
  StagedChunk* Find(const KeyDigest& key);
  StagedChunk& Get(StagedId id) { return *chunks_.at(id); }

  // A pinned chunk stays in the pool.
  void Pin(StagedId id) { chunks_.at(id)->pins += 1; }
  void Unpin(StagedId id);
  // Null once it has left the pool.
  StagedChunk* FindId(StagedId id);

  bool has_cache() const { return parts_.cache != nullptr; }
  // A chunk that was read whole and verified: the cache has it, and its slots, or they are freed.
  // REQUIRES: has_cache().
  void Retain(const KeyDigest& key, const ChunkShape& shape, const ContentId& content,
              const std::vector<uint64_t>& checksums, std::vector<sched::Slot> slots);
  // It was read from there.
  void NoteUse(const StagedChunk& chunk);
  // Evicts a retained chunk, with a slot of `arena`; false when none may go.
  bool Evict(sched::Arena arena);
  // An operator wants the key's copy out of the cache, if it is there; what reads it goes on.
  void GiveUp(const KeyDigest& key);
  // Of the engine loop.
  void NewTurn() {
    if (has_cache()) parts_.cache->NewTurn();
  }

  // Of a staged chunk whose bytes are no longer those that were stored: it is withdrawn, and no
  // further copy of it is begun.
  void Condemn(StagedId id, TimeNs now);

  // Chunks of a store have found no room in time, and are dropped.
  void WarnOfNoRoom(TimeNs now);

  // False: it found no room, which is being made for it, and is begun again.
  bool OnWritten(tier::Completion& completion, TimeNs now);
  // Writes go to a tier that is in service and whose writes are not out.
  void SetTierInService(TierId tier, bool in_service);
  void SetWritesOut(TierId tier, bool out);
  void OpenGate() { queue_.OpenGate(); }
  void OpenGateForGood() { queue_.OpenGateForGood(); }

  // Starts the writes that are due.
  void Pump(TierSet demand, bool room_wanted, TimeNs now);
  TimeNs NextDeadline() const { return queue_.NextDeadline(); }

  std::vector<DurableNotice> TakeNotices() { return std::move(notices_); }
  bool empty() const { return queue_.empty(); }
  uint64_t retained_chunks() const { return has_cache() ? parts_.cache->chunks() : 0; }
  // Of the pool, with the rounding of slots.
  uint64_t retained_bytes() const { return has_cache() ? parts_.cache->bytes() : 0; }
  const sched::WriteQueue& queue() const { return queue_; }

 private:
  struct alignas(kPayloadAlignment) HeaderBlock {
    std::array<std::byte, kHeaderBytes> bytes;
  };
  struct Write {
    StagedId chunk;
    TierId tier;
    std::unique_ptr<HeaderBlock> header;
    bool retried = false;
    uint32_t no_room = 0;      // Times that it found none, and some was made.
    bool met_damaged = false;  // Possibly, and what it met is on its way out of its name.
  };

  // A write that may meet this damaged file is begun again.
  void NoteAside(TierId tier, const std::string& path);
  void Submit(Ticket ticket);
  void Handle(const sched::WriteCommand& command, TimeNs now);
  void Published(StagedChunk& chunk, TierId tier, const ContentId& content,
                 const std::vector<uint64_t>& checksums, bool own);
  // Others may take the room that was made for a write; so often it is made again.
  static constexpr uint32_t kNoRoomMax = 4;

  // True: the write is begun again once its tier has room, or nothing to give up.
  bool MakeRoom(Ticket ticket, Write& write, TimeNs now);
  // What to make of a name that is taken. False: the write is not over yet.
  bool MeetExisting(Ticket ticket, Write& write, const tier::Completion& completion, bool* ok,
                    TimeNs now);
  void BeginRetaining(StagedChunk& chunk);
  // Out of the cache, and out of the index.
  void EndRetaining(StagedChunk& chunk);
  void Withdraw(const StagedChunk& chunk);
  bool MayEvict(const KeyDigest& key) const;
  void Notify(StagedChunk& chunk, absl::StatusCode code);
  void MaybeFree(StagedId id);

  const Parts parts_;
  sched::WriteQueue queue_;
  absl::flat_hash_map<StagedId, std::unique_ptr<StagedChunk>> chunks_;
  absl::flat_hash_map<KeyDigest, StagedId> by_key_;
  absl::flat_hash_map<Ticket, Write> writes_;
  TierSet out_of_service_;
  TierSet writes_out_;
  // Of warnings: about failing writes, damaged files that writes meet, second copies given up,
  // chunks that are lost, chunks without room, and damage in the pool.
  std::array<QuietPeriod, kTiersMax> failures_quiet_;
  std::array<QuietPeriod, kTiersMax> met_quiet_;
  std::array<QuietPeriod, kTiersMax> dropped_quiet_;
  QuietPeriod lost_quiet_;
  QuietPeriod no_room_quiet_;
  QuietPeriod damage_quiet_;
  uint64_t next_id_ = 1;
  uint64_t next_ticket_ = 1;
  std::vector<DurableNotice> notices_;
  // Writes of chunks that were found damaged before they began.
  std::vector<std::pair<StagedId, TierId>> not_written_;
};

}  // namespace kvstream::engine
