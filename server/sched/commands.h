// What goes into the router and what comes out: batches in, commands out. Plain data.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/base/chunk_shape.h"
#include "server/base/types.h"
#include "server/sched/slot_allocator.h"

namespace kvstream::sched {

// ------------------------------------------------------------------ in

// Copies of a chunk that combine: one content id.
struct Source {
  ContentId content;
  // Tiers that hold it now. May be empty when it is staged.
  TierSet tiers;
  // Complete in the staging pool. Where it is no more when it is asked for: OnStagedGone.
  bool staged = false;
};

using Sources = absl::InlinedVector<Source, 1>;

// One chunk that a request wants. No source means that it is missing.
struct Item {
  ChunkShape shape;
  // In the order in which to try them. One is used at a time, never a mix.
  Sources sources;
};

struct BatchSpec {
  // Not in use by another batch.
  OperationId id;
  // Useful only when all of it is there.
  bool joint = false;
  // Batches with the same step key form one list; 0: a step of its own.
  uint64_t step_key = 0;
  uint32_t ranks = 1;
  // A step whose ranks have not all come begins at the first one's join deadline.
  TimeNs join_deadline = 0;
  TimeNs deadline = kNever;
  // Items of each request, in the order in which they matter. No request is empty.
  std::vector<std::vector<Item>> requests;
};

// ------------------------------------------------------------------ out

// Which item of which batch.
struct ItemRef {
  OperationId batch;
  uint32_t request = 0;
  uint32_t item = 0;

  bool operator==(const ItemRef&) const = default;
};

// Read a segment into a slot; answer with Router::OnRead.
struct ReadSegment {
  Ticket ticket;
  TierId tier;
  ContentId content;
  uint32_t segment = 0;
  Slot slot;
};

// Verify the slot and copy it to each item's destination; answer with Router::OnCopy. The slot
// stays as it is until all of that is answered. For who comes meanwhile there is another command
// with the same ticket, once the bytes are known to be right.
struct CopySegment {
  Ticket ticket;
  // Whose bytes they are; for the figures.
  TierId tier;
  ContentId content;
  uint32_t segment = 0;
  Slot slot;
  absl::InlinedVector<ItemRef, 2> items;
};

// Verify the staged chunk and copy it to the item's destination; answer with Router::OnStagedCopy.
struct CopyStaged {
  ContentId content;
  ItemRef item;
};

// A tier failed to serve a content: NOT_FOUND, DATA_LOSS, RESOURCE_EXHAUSTED when the daemon was
// short of something, or what else its read ended with.
struct ReplicaFailed {
  ContentId content;
  TierId tier;
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  // The read that showed it; one of them, where several did.
  Ticket read;
};

// An item's outcome is final: OK, NOT_FOUND, DATA_LOSS, UNAVAILABLE, or why its batch ended early.
struct ItemDone {
  ItemRef item;
  absl::StatusCode code = absl::StatusCode::kOk;
};

// All items of a request are final and no copy into its destinations is running or will be.
struct RequestDone {
  OperationId batch;
  uint32_t request = 0;
  std::vector<absl::StatusCode> codes;
};

// All requests of a batch are done. The batch is forgotten.
struct BatchDone {
  OperationId batch;
};

// A tier was taken out because its quarantine is full, or came back from there.
struct TierOut {
  TierId tier;
};
struct TierBack {
  TierId tier;
};

using Command = std::variant<ReadSegment, CopySegment, CopyStaged, ReplicaFailed, ItemDone,
                             RequestDone, BatchDone, TierOut, TierBack>;

}  // namespace kvstream::sched
