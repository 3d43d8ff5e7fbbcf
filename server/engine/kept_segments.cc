#include "server/engine/kept_segments.h"

#include <algorithm>

namespace kvstream::engine {

bool KeptSegments::Add(const ContentId& content, uint32_t segment, uint32_t segments,
                       const sched::Slot& slot, std::vector<sched::Slot>* whole) {
  const auto [it, fresh] = contents_.try_emplace(content);
  Content& kept = it->second;
  if (fresh) {
    kept.slots.resize(segments);
    kept.left = segments;
    kept.place = order_.insert(order_.end(), content);
  }
  if (kept.slots.empty() || kept.slots[segment].has_value()) return false;
  kept.slots[segment] = slot;
  kept.left -= 1;
  if (kept.left > 0) return true;
  for (const auto& taken : kept.slots) whole->push_back(*taken);
  order_.erase(kept.place);
  contents_.erase(it);
  return true;
}

void KeptSegments::Forget(const ContentId& content) {
  const auto it = contents_.find(content);
  if (it == contents_.end()) return;
  if (!it->second.slots.empty()) FreeSlots(it->second);
  contents_.erase(it);
}

bool KeptSegments::GiveUpOne(sched::Arena arena) {
  const auto fits = [&](const std::optional<sched::Slot>& slot) {
    return slot.has_value() && (arena == sched::Arena::kAny || slots_->IsShared(*slot));
  };
  const auto last = std::find_if(order_.rbegin(), order_.rend(), [&](const ContentId& content) {
    return std::ranges::any_of(contents_.at(content).slots, fits);
  });
  if (last == order_.rend()) return false;
  FreeSlots(contents_.at(*last));
  return true;
}

void KeptSegments::FreeSlots(Content& content) {
  for (const auto& slot : content.slots) {
    if (slot.has_value()) slots_->Free(*slot);
  }
  content.slots.clear();
  order_.erase(content.place);
}

}  // namespace kvstream::engine
