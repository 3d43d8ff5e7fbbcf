#include "tests/support/sim_checker.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <variant>

namespace kvstream::sched {
namespace {

uint64_t Rounded(uint64_t bytes) { return std::bit_ceil(std::max(bytes, BuddyArena::kBlockMin)); }

}  // namespace

void SimChecker::Admit(const BatchSpec& spec, TimeNs now) {
  order_ += 1;
  BatchModel& batch = batches_[spec.id];
  batch.admitted_at = now;
  batch.admitted_order = order_;
  batch.deadline = spec.deadline;
  open_batches_ += 1;
  for (const auto& items : spec.requests) {
    RequestModel& request = batch.requests.emplace_back();
    for (const Item& item : items) {
      ItemModel& model = request.items.emplace_back();
      model.spec = item;
      model.destination.resize(item.shape.segments());
      model.copying.resize(item.shape.segments());
      model.staged_failed.resize(item.sources.size());
      for (const Source& source : item.sources) {
        ContentModel& content = contents_[source.content];
        content.tiers = content.tiers | source.tiers;
        content.failed = TierSet::FromBits(content.failed.bits() & ~source.tiers.bits());
        content.shape = item.shape;
        content.uses += 1;
      }
    }
  }
}

void SimChecker::Cancel(OperationId id) {
  order_ += 1;
  const auto it = batches_.find(id);
  if (it != batches_.end()) it->second.cancelled = true;
}

void SimChecker::SetInService(TierId tier, bool in_service) {
  order_ += 1;
  lanes_[tier.value].in_service = in_service;
  MarkUnusable(lanes_[tier.value]);
}

void SimChecker::ReadEnded(Ticket ticket, absl::StatusCode code, bool damaged) {
  order_ += 1;
  ReadModel& read = reads_.at(ticket);
  const ReadSegment& command = read.command;
  LaneModel& lane = lanes_[command.tier.value];
  lane.in_flight -= command.slot.bytes;
  lane.reads -= 1;
  read.stage = ReadStage::kLanded;
  read.good = code == absl::StatusCode::kOk;
  if (!read.good) contents_.at(command.content).trouble.Add(command.tier);
  landed_.push_back(ticket);
  const auto held = held_.find(command.slot.offset);
  if (held == held_.end() || held->second.ticket != ticket) {
    return Fail("a read landed in a slot that it does not hold");
  }
  held->second.piece = Piece{command.content, command.segment, damaged};
}

bool SimChecker::IsDamaged(Ticket ticket) const {
  const auto held = held_.find(reads_.at(ticket).command.slot.offset);
  return held == held_.end() || !held->second.piece || held->second.piece->damaged;
}

absl::StatusCode SimChecker::CopyEnded(Ticket ticket, std::span<const ItemRef> items) {
  order_ += 1;
  ReadModel& read = reads_.at(ticket);
  const ReadSegment& command = read.command;
  const auto held = held_.find(command.slot.offset);
  if (held == held_.end() || held->second.ticket != ticket || !held->second.piece ||
      held->second.piece->content != command.content ||
      held->second.piece->segment != command.segment) {
    Fail("a slot changed while it was being copied");
    return absl::StatusCode::kDataLoss;
  }
  for (const ItemRef& ref : items) {
    ItemModel& item = *ItemOf(ref);
    item.copying[command.segment] = false;
    item.destination[command.segment] = held->second.piece;
    batches_.at(ref.batch).requests[ref.request].copies -= 1;
  }
  read.copies -= items.size();
  read.verified = !held->second.piece->damaged;
  if (read.copies == 0) {
    read.stage = ReadStage::kLanded;
    landed_.push_back(ticket);
  }
  if (read.verified) return absl::StatusCode::kOk;
  read.good = false;
  contents_.at(command.content).trouble.Add(command.tier);
  return absl::StatusCode::kDataLoss;
}

absl::StatusCode SimChecker::StagedCopyEnded(const ItemRef& ref, bool damaged) {
  order_ += 1;
  ItemModel& item = *ItemOf(ref);
  item.staged_copying = false;
  batches_.at(ref.batch).requests[ref.request].copies -= 1;
  const auto source =
      std::find_if(item.spec.sources.begin(), item.spec.sources.end(), [&](const Source& s) {
        return s.staged && !item.staged_failed[static_cast<size_t>(&s - item.spec.sources.data())];
      });
  for (uint32_t s = 0; s < item.destination.size(); ++s) {
    item.destination[s] = Piece{source->content, s, damaged};
  }
  if (!damaged) return absl::StatusCode::kOk;
  item.staged_failed[static_cast<size_t>(source - item.spec.sources.begin())] = true;
  return absl::StatusCode::kDataLoss;
}

void SimChecker::Hold(const Slot& slot, Ticket ticket) {
  const uint64_t bytes = Rounded(slot.bytes);
  // A read that ended in this event may have given its slot back; nothing else may.
  for (auto at = held_.lower_bound(slot.offset); at != held_.end();) {
    if (at->first >= slot.offset + bytes) break;
    const Ticket holder = at->second.ticket;
    ++at;
    const auto read = reads_.find(holder);
    if (read == reads_.end() || read->second.stage != ReadStage::kLanded) {
      return Fail("a slot was handed out twice");
    }
    ReleaseRead(holder);
  }
  const auto after = held_.lower_bound(slot.offset);
  if (after != held_.begin()) {
    const Holding before = std::prev(after)->second;
    if (before.slot.offset + Rounded(before.slot.bytes) > slot.offset) {
      const auto read = reads_.find(before.ticket);
      if (read == reads_.end() || read->second.stage != ReadStage::kLanded) {
        return Fail("a slot was handed out twice");
      }
      ReleaseRead(before.ticket);
    }
  }
  held_[slot.offset] = Holding{slot, ticket, std::nullopt};
  held_bytes_ += bytes;
}

void SimChecker::Release(uint64_t offset) {
  const auto held = held_.find(offset);
  held_bytes_ -= Rounded(held->second.slot.bytes);
  held_.erase(held);
}

void SimChecker::ReleaseRead(Ticket ticket) {
  const auto it = reads_.find(ticket);
  Release(it->second.command.slot.offset);
  EndUse(it->second.command.content);
  reads_.erase(it);
}

void SimChecker::EndUse(const ContentId& id) {
  ContentModel& content = contents_.at(id);
  content.uses -= 1;
  if (content.uses == 0) content.failed = content.trouble = TierSet{};
}

void SimChecker::CheckNow(TimeNs now) {
  for (const Ticket ticket : std::exchange(landed_, {})) {
    const auto it = reads_.find(ticket);
    if (it != reads_.end() && it->second.stage == ReadStage::kLanded) ReleaseRead(ticket);
  }
  for (const auto& [id, batch] : batches_) {
    if (batch.done || (batch.deadline >= now && !batch.cancelled)) continue;
    for (const RequestModel& request : batch.requests) {
      if (!request.done && request.copies == 0) {
        return Fail("a batch lives past its deadline or cancel with no copy running");
      }
    }
  }
}

void SimChecker::OnCommand(const Command& command, TimeNs now) {
  order_ += 1;
  std::visit([this, now](const auto& c) { On(c, now); }, command);
}

}  // namespace kvstream::sched
