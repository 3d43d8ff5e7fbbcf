// What the checker asks of each command.
#include <algorithm>

#include "tests/support/sim_checker.h"

namespace kvstream::sched {

namespace {

// A read that somebody gives up after less is still relied on.
constexpr TimeNs kGivenUpAfter = kSecond;

bool SamePlace(const ReadSegment& a, const ReadSegment& b) {
  return a.content == b.content && a.segment == b.segment && a.tier == b.tier;
}

}  // namespace

ItemModel* SimChecker::ItemOf(const ItemRef& ref) {
  const auto it = batches_.find(ref.batch);
  if (it == batches_.end() || ref.request >= it->second.requests.size() ||
      ref.item >= it->second.requests[ref.request].items.size()) {
    return nullptr;
  }
  return &it->second.requests[ref.request].items[ref.item];
}

void SimChecker::On(const ReadSegment& command, TimeNs now) {
  const auto content = contents_.find(command.content);
  if (content == contents_.end() || command.segment >= content->second.shape.segments()) {
    return Fail("a read of something that nobody asked for");
  }
  LaneModel& lane = lanes_[command.tier.value];
  if (!content->second.tiers.Has(command.tier))
    return Fail("a read from a tier without the content");
  if (!lane.in_service || lane.choked) return Fail("a read from a tier that is out of service");
  if (command.slot.bytes != content->second.shape.PaddedBytesOf(command.segment)) {
    return Fail("a slot of another size than its segment");
  }
  uint32_t before = 0;
  for (const auto& [ticket, read] : reads_) {
    if (read.stage != ReadStage::kReading || !SamePlace(read.command, command)) continue;
    if (!read.given_up || ++before > 1) return Fail("a tier reads one segment twice at once");
  }
  if (reads_.contains(command.ticket)) return Fail("a ticket was used twice");
  Hold(command.slot, command.ticket);
  reads_[command.ticket].command = command;
  reads_[command.ticket].began = now;
  lane.in_flight += command.slot.bytes;
  lane.reads += 1;
  content->second.uses += 1;
}

void SimChecker::On(const CopySegment& command, TimeNs) {
  const auto it = reads_.find(command.ticket);
  if (it == reads_.end() || it->second.stage == ReadStage::kReading || !it->second.good) {
    return Fail("a copy of a read that has not landed well, or whose slot is gone");
  }
  if (it->second.stage == ReadStage::kCopying && !it->second.verified) {
    return Fail("a second copy of a read before the first one told whether it is right");
  }
  const ReadSegment& read = it->second.command;
  if (read.content != command.content || read.segment != command.segment ||
      read.tier != command.tier || read.slot != command.slot || command.items.empty()) {
    return Fail("a copy that does not match its read");
  }
  it->second.stage = ReadStage::kCopying;
  it->second.copies += command.items.size();
  for (const ItemRef& ref : command.items) {
    ItemModel* item = ItemOf(ref);
    if (item == nullptr) return Fail("a copy for an unknown item");
    RequestModel& request = batches_.at(ref.batch).requests[ref.request];
    if (request.done) return Fail("a copy began after its request was done");
    if (item->done) return Fail("a copy began after its item was done");
    if (item->copying[command.segment]) return Fail("two copies into one destination at once");
    const auto& sources = item->spec.sources;
    if (std::none_of(sources.begin(), sources.end(),
                     [&](const Source& s) { return s.content == command.content; })) {
      return Fail("a copy of a content that the item does not name");
    }
    item->copying[command.segment] = true;
    request.copies += 1;
  }
}

void SimChecker::On(const CopyStaged& command, TimeNs) {
  ItemModel* item = ItemOf(command.item);
  if (item == nullptr || item->done || item->staged_copying) {
    return Fail("a staged copy for an item that does not wait for one");
  }
  const auto& sources = item->spec.sources;
  const auto source = std::find_if(sources.begin(), sources.end(), [&](const Source& s) {
    return s.staged && !item->staged_failed[static_cast<size_t>(&s - sources.data())];
  });
  if (source == sources.end() || source->content != command.content) {
    return Fail("a staged copy of something that is not staged");
  }
  RequestModel& request = batches_.at(command.item.batch).requests[command.item.request];
  if (request.done) return Fail("a staged copy began after its request was done");
  item->staged_copying = true;
  request.copies += 1;
}

void SimChecker::On(const ReplicaFailed& command, TimeNs) {
  ContentModel& content = contents_.at(command.content);
  if (!content.trouble.Has(command.tier)) return Fail("a replica was failed that has not failed");
  content.failed.Add(command.tier);
  content.failed_order[command.tier.value] = order_;
}

void SimChecker::On(const ItemDone& command, TimeNs now) {
  ItemModel* item = ItemOf(command.item);
  if (item == nullptr || item->done) return Fail("an item was done twice");
  const BatchModel& batch = batches_.at(command.item.batch);
  if (batch.requests[command.item.request].done) return Fail("an item was done after its request");
  item->done = true;
  item->code = command.code;
  switch (command.code) {
    case absl::StatusCode::kOk:
      CheckDelivered(*item);
      break;
    case absl::StatusCode::kCancelled:
      if (!batch.cancelled) Fail("an item was cancelled that nobody cancelled");
      GiveUp(*item, now);
      break;
    case absl::StatusCode::kDeadlineExceeded:
      if (now < batch.deadline) Fail("an item failed before its deadline for being late");
      GiveUp(*item, now);
      break;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kUnavailable:
      CheckFailedRightly(batch, *item);
      break;
    default:
      Fail("an item failed with a code outside the vocabulary");
  }
  for (const Source& source : item->spec.sources) EndUse(source.content);
}

void SimChecker::GiveUp(const ItemModel& item, TimeNs now) {
  for (const Source& source : item.spec.sources) {
    std::vector<ReadSegment> given_up;
    for (auto& [ticket, read] : reads_) {
      if (read.stage != ReadStage::kReading || read.command.content != source.content) continue;
      read.given_up = read.given_up || now - read.began >= kGivenUpAfter;
      if (!read.given_up) continue;
      for (const ReadSegment& other : given_up) {
        if (SamePlace(read.command, other)) {
          contents_.at(source.content).trouble.Add(other.tier);
        }
      }
      given_up.push_back(read.command);
    }
  }
}

void SimChecker::CheckDelivered(const ItemModel& item) {
  const auto& sources = item.spec.sources;
  const auto& first = item.destination.front();
  for (uint32_t s = 0; s < item.destination.size(); ++s) {
    const auto& piece = item.destination[s];
    if (!piece || *piece != Piece{first->content, s, false} || item.copying[s]) {
      return Fail("an item is OK and its destination is not");
    }
  }
  if (std::none_of(sources.begin(), sources.end(),
                   [&](const Source& s) { return s.content == first->content; })) {
    Fail("an item is OK with a content that it does not name");
  }
}

void SimChecker::CheckFailedRightly(const BatchModel& batch, const ItemModel& item) {
  for (size_t i = 0; i < item.spec.sources.size(); ++i) {
    const Source& source = item.spec.sources[i];
    if (source.staged && !item.staged_failed[i]) {
      return Fail("an item failed and its staged copy was not tried");
    }
    for (uint32_t t = 0; t < lanes_.size(); ++t) {
      const bool usable = lanes_[t].in_service && !lanes_[t].choked &&
                          lanes_[t].unusable_order < batch.admitted_order;
      const ContentModel& content = contents_.at(source.content);
      const bool tried =
          content.failed.Has(TierId{t}) || content.failed_order[t] > batch.admitted_order;
      if (source.tiers.Has(TierId{t}) && usable && !tried) {
        return Fail("an item failed and a healthy replica was not tried");
      }
    }
  }
}

void SimChecker::On(const RequestDone& command, TimeNs now) {
  const auto it = batches_.find(command.batch);
  if (it == batches_.end() || it->second.done || command.request >= it->second.requests.size()) {
    return Fail("a request was done after its batch");
  }
  RequestModel& request = it->second.requests[command.request];
  if (request.done) return Fail("a request was done twice");
  if (request.copies > 0) return Fail("a request was done with a copy running");
  if (command.codes.size() != request.items.size()) return Fail("a request's codes are incomplete");
  for (size_t i = 0; i < request.items.size(); ++i) {
    if (!request.items[i].done) return Fail("a request was done before its items");
    if (request.items[i].code != command.codes[i]) return Fail("a request's codes differ");
  }
  request.done = true;
  request.done_at = now;
}

void SimChecker::On(const BatchDone& command, TimeNs now) {
  const auto it = batches_.find(command.batch);
  if (it == batches_.end() || it->second.done) return Fail("a batch was done twice");
  for (const RequestModel& request : it->second.requests) {
    if (!request.done) return Fail("a batch was done before its requests");
  }
  it->second.done = true;
  it->second.done_at = now;
  open_batches_ -= 1;
}

void SimChecker::On(const TierOut& command, TimeNs) {
  LaneModel& lane = lanes_[command.tier.value];
  if (lane.choked) Fail("a tier was taken out twice");
  lane.choked = true;
  MarkUnusable(lane);
}

void SimChecker::On(const TierBack& command, TimeNs) {
  LaneModel& lane = lanes_[command.tier.value];
  if (!lane.choked) Fail("a tier came back that was not out");
  lane.choked = false;
  MarkUnusable(lane);
}

}  // namespace kvstream::sched
