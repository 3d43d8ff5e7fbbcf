// The router's state: batches that want chunks, and fetches that bring them. A fetch is one content
// being read, whoever waits for it: several ranks or requests that want the same chunk share its
// reads. Private to the router.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/base/chunk_shape.h"
#include "server/base/types.h"
#include "server/sched/commands.h"
#include "server/sched/read_list.h"
#include "server/sched/tier_lane.h"

namespace kvstream::sched {

struct Step;

// A chunk that a request wants, on its way.
struct ItemState {
  Item spec;
  uint32_t source = 0;                            // Which of spec.sources is in use.
  bool tried_staged = false;                      // Its staged copy failed; its tiers are next.
  bool staged_verified = false;                   // Of the staged copy that runs.
  bool decided = false;                           // The outcome is final.
  uint32_t segments_left = 0;                     // Of the source in use.
  absl::StatusCode code = absl::StatusCode::kOk;  // Final, or the worst failure so far.
};

struct RequestState {
  std::vector<ItemState> items;
  uint32_t open_items = 0;
  uint32_t copies = 0;  // Copies into its destinations that have begun and not ended.
  bool done = false;
};

struct Batch {
  OperationId id;
  TimeNs deadline = kNever;
  Step* step = nullptr;
  bool began = false;
  std::vector<RequestState> requests;
  uint32_t open_requests = 0;
};

// What competes for the tiers: one list for a joint step, one for each request otherwise.
struct Step {
  uint64_t key = 0;
  bool joint = false;
  bool joining = false;
  TimeNs join_deadline = 0;
  uint32_t ranks = 1;
  uint32_t arrived = 0;
  uint64_t chunks = 0;  // That were assigned to tiers.
  std::vector<Batch*> batches;
  // Joint: lists[0]. Independent, or a request at a time: one for each request.
  std::vector<ReadList> lists;
  uint64_t queued_bytes = 0;  // Of all lists.
  // Where a tier looks on: lists before it have nothing for the tier, or have ended.
  struct Cursor {
    size_t list = 0;
    uint64_t bytes_before = 0;   // Of those lists: what other tiers hold.
    bool found_nothing = false;  // When it last looked: what is left, it leaves to others.
  };
  absl::InlinedVector<Cursor, kTiersMax> cursors;
  // Bytes that it may claim on each tier before the next step's turn; negative: taken in advance.
  absl::InlinedVector<int64_t, kTiersMax> credits;
};

// How far a segment is for one waiter.
enum class Need : uint8_t { kWanted, kCopying, kDelivered };

struct Waiter {
  Batch* batch = nullptr;
  ItemRef ref;
  absl::InlinedVector<Need, 8> needs;  // By segment.
  uint32_t copying = 0;
  TierSet assigned;  // Which tiers are to read it, if any of them can; empty: all.
  // It takes no more segments and goes when its copies have ended.
  bool leaving = false;
};

struct SegmentState {
  enum class Stage : uint8_t { kIdle, kQueued, kReading, kCopying };
  Stage stage = Stage::kIdle;
  absl::InlinedVector<uint32_t, 2> reads;  // In flight, as indexes of the read table.
  uint32_t copied = kNoRead;               // The read whose slot is being copied.
};

struct Fetch {
  bool live = false;
  uint32_t generation = 0;
  uint32_t index = 0;  // Its place in the fetch table.
  ContentId content;
  ChunkShape shape;
  TierSet tiers;  // That hold it and have not failed it.
  TierSet failed;
  absl::StatusCode worst = absl::StatusCode::kNotFound;
  std::vector<SegmentState> segments;
  std::vector<Waiter> waiters;
  uint32_t reads = 0;   // In flight.
  uint32_t copies = 0;  // Segments that are being copied.
};

// A segment read in flight, or landed and being copied.
struct Read {
  Ticket ticket;
  bool live = false;
  uint32_t fetch = 0;
  uint32_t segment = 0;
  TierId tier;
  bool landed = false;
  Slot slot;
  TimeNs began = 0;
  uint64_t ahead = 0;        // Bytes in flight on the tier when it began.
  TimeNs expected = 0;       // How long it should take; 0 where that was not known.
  bool orphan = false;       // Nobody waits for it: its slot counts as quarantined.
  bool overdue = false;      // Late when somebody gave it up: no longer relied on.
  uint64_t copies = 0;       // Of its slot, that are running.
  bool verified = false;     // Its bytes are known to be right.
  bool damaged = false;      // They are not.
  uint32_t older = kNoRead;  // Its neighbours among the tier's reads in flight.
  uint32_t newer = kNoRead;
};

}  // namespace kvstream::sched
