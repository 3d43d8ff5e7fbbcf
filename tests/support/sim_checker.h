// The promises of the router, checked from the outside: it sees what the world asks and what the
// router commands, keeps its own account of batches, slots and bytes, and notes the first thing
// that is wrong. It also is the simulation's memory: which piece of which content every slot holds
// and every destination received, so that wrong bytes show.
//
// Thread rule: one thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/sched/commands.h"

namespace kvstream::sched {

// What a piece of memory holds.
struct Piece {
  ContentId content;
  uint32_t segment = 0;
  bool damaged = false;

  bool operator==(const Piece&) const = default;
};

struct ItemModel {
  Item spec;
  bool done = false;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::vector<std::optional<Piece>> destination;  // By segment.
  std::vector<bool> copying;                      // By segment.
  bool staged_copying = false;
  std::vector<bool> staged_failed;  // By source.
};

struct RequestModel {
  std::vector<ItemModel> items;
  uint32_t copies = 0;
  bool done = false;
  TimeNs done_at = 0;
};

struct BatchModel {
  TimeNs admitted_at = 0;
  uint64_t admitted_order = 0;
  TimeNs deadline = kNever;
  bool cancelled = false;
  std::vector<RequestModel> requests;
  bool done = false;
  TimeNs done_at = 0;
};

class SimChecker {
 public:
  explicit SimChecker(uint32_t tiers) : lanes_(tiers) {}

  // What the world does; call before the router is told.
  void Admit(const BatchSpec& spec, TimeNs now);
  void Cancel(OperationId batch);
  void SetInService(TierId tier, bool in_service);
  void ReadEnded(Ticket ticket, absl::StatusCode code, bool damaged);
  // Verifies and copies, these of the ticket's items: the code to answer with.
  absl::StatusCode CopyEnded(Ticket ticket, std::span<const ItemRef> items);
  bool IsDamaged(Ticket ticket) const;
  absl::StatusCode StagedCopyEnded(const ItemRef& ref, bool damaged);
  void WriterTook(const Slot& slot) { Hold(slot, Ticket{}); }
  void WriterFreed(const Slot& slot) { Release(slot.offset); }

  // What the router commands, in order.
  void OnCommand(const Command& command, TimeNs now);

  // After each event, with all its commands seen.
  void CheckNow(TimeNs now);
  bool AllDone() const { return open_batches_ == 0; }

  // Bytes that must be out of the allocator, rounding included.
  uint64_t held_bytes() const { return held_bytes_; }
  uint64_t in_flight(TierId tier) const { return lanes_[tier.value].in_flight; }
  uint32_t reads_in_flight(TierId tier) const { return lanes_[tier.value].reads; }
  const BatchModel& batch(OperationId id) const { return batches_.at(id); }
  // The first thing that went wrong; empty: nothing.
  const std::string& violation() const { return violation_; }
  void Fail(std::string_view what) {
    if (violation_.empty()) violation_ = what;
  }

 private:
  enum class ReadStage { kReading, kLanded, kCopying };
  struct ReadModel {
    ReadSegment command;
    ReadStage stage = ReadStage::kReading;
    TimeNs began = 0;
    bool given_up = false;  // In flight for long when an item that wanted it ended early.
    bool good = false;  // Landed, and not failed verification.
    bool verified = false;
    size_t copies = 0;  // Running.
  };
  struct Holding {
    Slot slot;
    Ticket ticket;  // 0: the writer's.
    std::optional<Piece> piece;
  };
  struct LaneModel {
    bool in_service = true;
    bool choked = false;
    uint64_t unusable_order = 0;  // The last time that it was not usable.
    uint64_t in_flight = 0;
    uint32_t reads = 0;
  };
  struct ContentModel {
    TierSet tiers;  // Of all its sources ever named.
    ChunkShape shape;
    TierSet failed;  // Since it last had a use, or was named by an admission.
    TierSet trouble;
    std::array<uint64_t, kTiersMax> failed_order{};  // The last time that each failed it.
    uint64_t uses = 0;
  };

  void On(const ReadSegment& command, TimeNs now);
  void On(const CopySegment& command, TimeNs now);
  void On(const CopyStaged& command, TimeNs now);
  void On(const ReplicaFailed& command, TimeNs now);
  void On(const ItemDone& command, TimeNs now);
  void On(const RequestDone& command, TimeNs now);
  void On(const BatchDone& command, TimeNs now);
  void On(const TierOut& command, TimeNs now);
  void On(const TierBack& command, TimeNs now);

  ItemModel* ItemOf(const ItemRef& ref);
  void CheckDelivered(const ItemModel& item);
  void GiveUp(const ItemModel& item, TimeNs now);
  void CheckFailedRightly(const BatchModel& batch, const ItemModel& item);
  void MarkUnusable(LaneModel& lane) { lane.unusable_order = order_; }
  void EndUse(const ContentId& content);
  void Hold(const Slot& slot, Ticket ticket);
  void Release(uint64_t offset);
  void ReleaseRead(Ticket ticket);

  std::vector<LaneModel> lanes_;
  std::map<OperationId, BatchModel> batches_;
  uint64_t open_batches_ = 0;
  absl::flat_hash_map<ContentId, ContentModel> contents_;
  absl::flat_hash_map<Ticket, ReadModel> reads_;
  std::vector<Ticket> landed_;        // In this event: freed unless copied.
  std::map<uint64_t, Holding> held_;  // By offset.
  uint64_t held_bytes_ = 0;
  uint64_t order_ = 0;  // Numbers events and commands.
  std::string violation_;
};

}  // namespace kvstream::sched
