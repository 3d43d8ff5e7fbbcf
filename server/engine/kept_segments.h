// Segments that reads have brought and that stay in their slots until all of their chunk are there,
// for the DRAM cache. They are given up where their slots are wanted: what has come last first, so
// that some chunk gets whole.
//
// Thread rule: the engine loop. Ownership: borrows the allocator; the slots are its own.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/base/types.h"
#include "server/sched/slot_allocator.h"

namespace kvstream::engine {

class KeptSegments {
 public:
  explicit KeptSegments(sched::SlotAllocator* slots) : slots_(slots) {}
  KeptSegments(const KeptSegments&) = delete;
  KeptSegments& operator=(const KeptSegments&) = delete;

  // Takes the slot of one of the content's `segments`. False, and the slot is the caller's, where
  // it has that segment or has given the content up. With the last one `*whole` has the slots of
  // all, by segment, and they are the caller's.
  bool Add(const ContentId& content, uint32_t segment, uint32_t segments, const sched::Slot& slot,
           std::vector<sched::Slot>* whole);
  // Nobody reads the content any more: it will not get whole.
  void Forget(const ContentId& content);
  // Frees the slots of one content, one of `arena` among them. False when there is none.
  bool GiveUpOne(sched::Arena arena);

 private:
  struct Content {
    std::vector<std::optional<sched::Slot>> slots;  // None: it was given up.
    uint32_t left = 0;
    std::list<ContentId>::iterator place;
  };

  void FreeSlots(Content& content);

  sched::SlotAllocator* const slots_;
  absl::flat_hash_map<ContentId, Content> contents_;
  std::list<ContentId> order_;  // Of those that have slots, by their first.
};

}  // namespace kvstream::engine
