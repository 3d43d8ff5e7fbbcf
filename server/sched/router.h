// The router: which tier reads which segment of which batch next. It is pure: no clock, lock,
// thread or I/O. Events go in with the time, commands come out; the engine loop and the simulator
// run this same code.
//
// Tiers claim when their window has room, so completions pace each tier and the faster one drains
// more. A tier reads each list from its own end (ReadList). Between steps claims go round by bytes.
//
// The tail of a list is where time is lost, so two rules hold there. Narrowing: a tier leaves a
// segment to another holder that would have it sooner, once all that is left would end before its
// own read of it. Hedging: a tier that has nothing else to read for a request reads again a segment
// of it that another has in flight and would, as far as one can tell, have later; one that is late
// (HedgeAge) always; and this goes before other steps' claims. The first verified copy wins, and
// the loser keeps its slot until its own completion.
//
// Promises, checked in tests/sched at every step of every seed:
//   - every item gets exactly one ItemDone, every request one RequestDone, every batch one
//     BatchDone, in that order, and no copy command names a request after its RequestDone;
//   - OK only when all segments of one content were copied to the item after verification;
//   - a slot is freed only after the read and the copy that use it have ended;
//   - bytes in flight of a tier stay within its window, or two segments where that is more and the
//     config allows them, or one beside those that may hang and that its quarantine could hold
//     (kPublished looks at the configured window alone);
//   - an item fails only if every usable replica failed, its deadline passed, or it was cancelled.
//
// Thread rule: one thread. Ownership: the slot allocator outlives the router.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/base/types.h"
#include "server/sched/commands.h"
#include "server/sched/fetch.h"
#include "server/sched/policy.h"
#include "server/sched/slot_allocator.h"
#include "server/sched/tier_lane.h"

namespace kvstream::sched {

struct RouterOptions {
  // By TierId.
  std::vector<LaneOptions> lanes;
  // A segment in flight for this long, and for twice what is queued on its tier, may be read again
  // elsewhere.
  TimeNs hedge_after = 250 * kMillisecond;
  PolicyOptions policy;
  // Bytes that a step may claim on a tier before the next step has its turn. What a segment takes
  // beyond them, its step waits out.
  uint64_t turn_bytes = 4 * kMiB;
  // Staged chunks being verified and copied at once; the rest waits here, where cancel reaches it.
  uint32_t staged_copies_max = 64;
};

// Who may keep a segment that was read where it is.
class SegmentKeeper {
 public:
  virtual ~SegmentKeeper() = default;
  // Called once the reads and copies of the slot have ended and its bytes are known to be right.
  // True: the slot is the keeper's from now on, else it is freed. Must not call the router.
  virtual bool Keep(const ContentId& content, uint32_t segment, const Slot& slot) = 0;
};

class Router {
 public:
  // `keeper`, if any, outlives the router.
  Router(const RouterOptions& options, SlotAllocator* slots, SegmentKeeper* keeper = nullptr);
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  void Admit(BatchSpec spec, TimeNs now);
  // Ends a batch early: what is not delivered fails with `code`, CANCELLED or why there is no way
  // to deliver it. Idempotent; unknown ids are ignored.
  void Fail(OperationId batch, absl::StatusCode code, TimeNs now);
  // The answer to ReadSegment: OK, or the reason why this replica cannot serve.
  void OnRead(Ticket ticket, absl::StatusCode code, TimeNs now);
  // An answer to CopySegment: the bytes are right, and these of its copies have ended, in the
  // command's order; there may be several answers, and none in the first. Or kDataLoss for all of
  // the command's when verification failed.
  void OnCopy(Ticket ticket, std::span<const ItemRef> items, absl::StatusCode code, TimeNs now);
  void OnStagedCopy(const ItemRef& item, absl::StatusCode code, TimeNs now);
  // The answer to CopyStaged of a chunk that has left the pool: what there is of it now.
  void OnStagedGone(const ItemRef& item, Sources sources, TimeNs now);
  // Optional, before OnStagedCopy: the bytes are right, and on their way to the item without the
  // copy threads. Others may begin.
  void OnStagedVerified(const ItemRef& item, TimeNs now);
  // Takes a tier out of service or brings it back.
  void SetTierInService(TierId tier, bool in_service, TimeNs now);
  // Slots were freed by others.
  void OnSlotsFreed(TimeNs now) { Claim(now); }
  // Deadlines, join timeouts, hedges. Call at NextDeadline at the latest.
  void Tick(TimeNs now);
  TimeNs NextDeadline() const;

  // Replaces `commands` by those since the last call, in order. Its memory is used again.
  void TakeCommands(std::vector<Command>* commands) {
    commands->clear();
    commands->swap(commands_);
  }

  const TierLane& lane(TierId tier) const { return lanes_[tier.value]; }
  // Tiers that may be read from.
  TierSet InService() const;
  // Whether reads want this tier: in flight, or waiting to be claimed. Writes defer to it.
  bool HasDemand(TierId tier) const {
    return lanes_[tier.value].in_flight() > 0 || queued_[tier.value] > 0;
  }
  // Whether some tier has found no slot for what waits for it, and nothing in flight that should
  // come back: what else is in the pool stands in its way.
  bool starved() const { return starved_; }
  // Whether its oldest read is late and it has given nothing back for a while.
  bool Silent(TierId tier, TimeNs now) const { return Silent(lanes_[tier.value], now); }
  size_t batches() const { return batches_.size(); }
  // Reads begun because another tier was late, or would have been later, by tier.
  uint64_t hedges(TierId tier) const { return hedges_[tier.value]; }

 private:
  friend class RouterPeer;  // Checks in tests that its parts agree.

  // router.cc: batches and items.
  Step* StepFor(const BatchSpec& spec);
  void Begin(Step* step);
  void StartItem(Batch* batch, const ItemRef& ref);
  // The source in use failed: tries the next one, or decides.
  void AdvanceItem(Batch* batch, const ItemRef& ref, absl::StatusCode failure);
  void Decide(Batch* batch, const ItemRef& ref, absl::StatusCode code);
  void FailBatch(Batch* batch, absl::StatusCode code, TimeNs now);
  // Emits RequestDone and BatchDone where due. True when the batch is gone.
  bool MaybeFinish(Batch* batch, uint32_t request);
  void RemoveStep(Step* step);
  void PumpStaged();
  // What every event ends with.
  void Settle(TimeNs now);

  // router_join.cc: where what is wanted is listed.
  uint32_t FetchFor(const ItemState& item);
  // What is admitted names what is there now: a replica that had failed was published anew.
  void Republish(const Source& source);
  void AddTiers(Fetch& fetch, TierSet fresh);
  void Join(Batch* batch, const ItemRef& ref);
  // Which tiers the policy lets read the step's next chunk; empty: all.
  TierSet Assign(Step& step) const;
  // Which of the step's lists a request's segments wait in.
  size_t ListOf(const Step& step, uint32_t request) const;
  // Lists a segment where the waiter's are claimed from.
  void Enqueue(const Fetch& fetch, const Waiter& waiter, uint32_t segment, bool front);
  // The same, unless an earlier waiter that wants it has it in the same list.
  void EnqueueOnce(const Fetch& fetch, size_t waiter, uint32_t segment, bool front);
  void PushToWaiters(const Fetch& fetch, uint32_t segment, bool front);

  // router_fetch.cc: fetches, reads and copies.
  static bool Wanted(const Fetch& fetch, uint32_t segment);
  void SetStage(Fetch& fetch, uint32_t segment, SegmentState::Stage stage);
  // For all who want the segment that it has brought.
  void StartCopy(uint32_t read);
  // The same for who came while it was copied.
  void StartLateCopies();
  // All copies of its slot have ended.
  void EndCopies(uint32_t read);
  void EndCopyFor(Waiter& waiter, uint32_t segment, bool ok);
  void FailReplica(Fetch& fetch, TierId tier, absl::StatusCode code, Ticket read);
  // Puts a segment where it belongs: waiting, being read, or idle.
  void Reconsider(Fetch& fetch, uint32_t segment);
  // The same for all of a fetch, after its waiters or its tiers changed.
  void ReconsiderSegments(Fetch& fetch);
  void ReconsiderAll();
  void FailIfUnservable(Fetch& fetch);
  // Takes waiters that have no copies running out of the fetch; their undecided items advance.
  void Sweep(Fetch& fetch);
  // The batch's waiters go, now or once their copies have ended.
  void Leave(Fetch& fetch, const Batch& batch);
  void UpdateOrphans(Fetch& fetch, uint32_t segment);
  // The batch gives up: reads that it waited for and that are late are relied on no longer. Whoever
  // wants the segment still, or again, has it read anew.
  void NoteOverdue(Fetch& fetch, const Batch& batch, TimeNs now);
  // Tiers that were asked twice for a segment in vain have failed the content.
  void FailOverdue(Fetch& fetch);
  // A ticket is a read's place in the table and how often the place was used. `landed`: that it
  // must have been answered before, or must not.
  uint32_t ReadOf(Ticket ticket, bool landed) const;
  void AddToLane(TierLane& lane, uint32_t read);
  void RemoveFromLane(TierLane& lane, const Read& read);
  void FreeRead(uint32_t read);
  void MaybeFree(Fetch& fetch);
  TierSet Usable(TierSet tiers) const { return tiers & InService(); }

  // router_claim.cc: who reads what next.
  void Claim(TimeNs now);
  bool ClaimNext(TierLane& lane, TimeNs now);
  void NextTurn(TierId tier);
  // A read that may hang does not keep the window for good, nor do as many as the quarantine holds.
  bool HasRoom(const TierLane& lane, uint64_t bytes, TimeNs now) const;
  // From which end a tier takes segments with these holders, meant for these tiers.
  ReadList::End EndOf(const TierLane& lane, TierSet holders, TierSet assigned, TimeNs now) const;
  // Bytes claimed; 0 when the step has nothing for this tier now, or what it has finds no room:
  // then `*blocked` is set.
  uint64_t ClaimFrom(Step& step, TierLane& lane, bool* blocked, TimeNs now);
  // Moves the tier's cursor on to the next list that has something for it.
  void MoveCursor(Step& step, TierId tier);
  // Entries of a list were taken or dropped.
  void NoteUnlisted(Step& step, size_t list, uint64_t bytes);
  // Whether every batch's request that feeds this list has ended.
  static bool ListEnded(const Step& step, size_t list);
  std::optional<Slot> SlotFor(const TierLane& lane, uint64_t bytes, TimeNs now);
  // Claims the other segments of a chunk too; returns their bytes.
  uint64_t ClaimRest(uint32_t fetch, TierLane& lane, TimeNs now);

  // router_tail.cc: what tiers leave to each other, and what they read again.
  // Whether another holder should have `bytes` of the step sooner than `lane`, with `queued_up_to`
  // waiting in their list and in those before it.
  bool LeaveToOthers(const TierLane& lane, const Step& step, uint64_t queued_up_to, TierSet holders,
                     uint64_t bytes, TimeNs now) const;
  // `*no_room`: there is something to read again, and no room for it in the window.
  bool Hedge(TierLane& lane, bool* no_room, TimeNs now);
  // Whether `lane` has nothing else to read for some request that waits for the segment.
  bool NothingElseFor(const TierLane& lane, const Fetch& fetch, uint32_t segment);
  // The read whose segment `lane` should read again, as an index; kNoRead if there is none.
  uint32_t WorstRead(const TierLane& lane, TimeNs now);
  // How much longer a read should take, as far as one can tell.
  TimeNs Remaining(const Read& read, uint64_t bytes_up_to_it, TimeNs now) const;
  bool LateEverywhere(const SegmentState& segment, TierId except, TimeNs now) const;
  void ScheduleHedges(TimeNs now);
  // A read in flight for so long is late: hedge_after, or twice what is queued on its tier.
  TimeNs HedgeAge(const TierLane& lane) const;
  TimeNs HedgeAge(const TierLane& lane, uint64_t queued_bytes) const;
  // Whether a read is, so that it may never end.
  bool MayHang(const Read& read, TimeNs now) const;
  // Whether its oldest read is late.
  bool Late(const TierLane& lane, TimeNs now) const;
  // Whether it may hang: late, and nothing has come back for a while.
  bool Silent(const TierLane& lane, TimeNs now) const;
  // kPublished: whether all that it took has arrived, but for what may never.
  bool RoundIsOver(const TierLane& lane, TimeNs now) const;
  void StartRead(TierLane& lane, uint32_t fetch, uint32_t segment, const Slot& slot, TimeNs now);
  TierId FastestOf(TierSet tiers) const;

  const RouterOptions options_;
  SlotAllocator* const slots_;
  SegmentKeeper* const keeper_;
  std::vector<TierLane> lanes_;
  std::vector<uint64_t> queued_;  // Segments that wait for a claim, by tier that holds them.
  uint64_t queued_bytes_ = 0;     // Of all steps' lists.
  std::vector<uint64_t> hedges_;

  absl::flat_hash_map<OperationId, std::unique_ptr<Batch>> batches_;
  std::set<std::pair<TimeNs, OperationId>> deadlines_;
  std::vector<std::unique_ptr<Step>> steps_;  // In the order of arrival.

  absl::flat_hash_map<ContentId, uint32_t> fetch_of_;
  std::deque<Fetch> fetches_;  // A deque: references stay valid while it grows.
  std::vector<uint32_t> free_fetches_;
  std::deque<Read> reads_;
  std::vector<uint32_t> free_reads_;

  bool starved_ = false;        // As of the last claims.
  std::vector<Ticket> recopy_;  // Reads whose slot late-comers want, until the event's end.
  std::deque<ItemRef> staged_waiting_;
  uint32_t staged_copies_ = 0;

  std::vector<uint32_t> chunks_left_;  // kPublished: of those that a tier takes at a time.
  std::vector<size_t> turns_;          // Which step's turn it is, by tier.
  TimeNs next_hedge_check_ = kNever;
  std::vector<TimeNs> hedge_not_before_;  // By tier.

  std::vector<Command> commands_;
};

}  // namespace kvstream::sched
