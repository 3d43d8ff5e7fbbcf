#include "server/sched/router.h"

#include <algorithm>
#include <utility>

#include "server/base/check.h"

namespace kvstream::sched {
namespace {

// Of several failures, the one that says most: damage before trouble before absence.
absl::StatusCode Worse(absl::StatusCode a, absl::StatusCode b) {
  const auto rank = [](absl::StatusCode code) {
    switch (code) {
      case absl::StatusCode::kOk:
        return 0;
      case absl::StatusCode::kNotFound:
        return 1;
      case absl::StatusCode::kDataLoss:
        return 3;
      default:
        return 2;
    }
  };
  return rank(a) >= rank(b) ? a : b;
}

// What a client hears of a replica that failed. Why its tier could not read it (no permission, no
// descriptor) is between the tier and the daemon: the same codes tell a client other things.
absl::StatusCode OutcomeOf(absl::StatusCode failure) {
  const bool told =
      failure == absl::StatusCode::kNotFound || failure == absl::StatusCode::kDataLoss;
  return told ? failure : absl::StatusCode::kUnavailable;
}

}  // namespace

Router::Router(const RouterOptions& options, SlotAllocator* slots, SegmentKeeper* keeper)
    : options_(options), slots_(slots), keeper_(keeper) {
  KV_CHECK(!options.lanes.empty() && options.lanes.size() <= kTiersMax);
  for (uint32_t i = 0; i < options.lanes.size(); ++i)
    lanes_.emplace_back(TierId{i}, options.lanes[i]);
  queued_.resize(lanes_.size());
  hedges_.resize(lanes_.size());
  turns_.resize(lanes_.size());
  chunks_left_.resize(lanes_.size());
  hedge_not_before_.resize(lanes_.size());
}

Step* Router::StepFor(const BatchSpec& spec) {
  if (spec.joint && spec.step_key != 0) {
    for (auto& step : steps_) {
      if (step->joint && step->key == spec.step_key) return step.get();
    }
  }
  auto step = std::make_unique<Step>();
  step->joint = spec.joint;
  step->key = spec.joint ? spec.step_key : 0;
  step->ranks = step->key != 0 ? spec.ranks : 1;
  step->joining = true;
  step->credits.resize(lanes_.size());
  step->cursors.resize(lanes_.size());
  step->join_deadline = spec.join_deadline;
  steps_.push_back(std::move(step));
  return steps_.back().get();
}

void Router::Admit(BatchSpec spec, TimeNs now) {
  KV_CHECK(!spec.requests.empty() && !batches_.contains(spec.id));
  Step* step = StepFor(spec);
  auto owned = std::make_unique<Batch>();
  Batch* batch = owned.get();
  batch->id = spec.id;
  batch->deadline = spec.deadline;
  batch->step = step;
  batch->open_requests = static_cast<uint32_t>(spec.requests.size());
  for (auto& items : spec.requests) {
    KV_CHECK(!items.empty());
    RequestState& request = batch->requests.emplace_back();
    request.open_items = static_cast<uint32_t>(items.size());
    request.items.reserve(items.size());
    for (Item& item : items) {
      for (const Source& source : item.sources) Republish(source);
      request.items.emplace_back().spec = std::move(item);
    }
  }
  step->batches.push_back(batch);
  step->arrived += 1;
  batches_[spec.id] = std::move(owned);
  deadlines_.emplace(spec.deadline, spec.id);
  // A rank that came late joins a step under way.
  if (!step->joining || step->arrived >= step->ranks || step->join_deadline <= now) Begin(step);
  Settle(now);
}

void Router::Begin(Step* step) {
  step->joining = false;
  const std::vector<Batch*> batches = step->batches;
  for (const Batch* batch : batches) {
    const auto last = static_cast<uint32_t>(batch->requests.size() - 1);
    step->lists.resize(std::max(step->lists.size(), ListOf(*step, last) + 1));
  }
  for (Batch* batch : batches) {
    if (batch->began) continue;
    batch->began = true;
    const auto requests = static_cast<uint32_t>(batch->requests.size());
    for (uint32_t r = 0; r < requests; ++r) {
      const auto items = static_cast<uint32_t>(batch->requests[r].items.size());
      for (uint32_t i = 0; i < items; ++i) StartItem(batch, ItemRef{batch->id, r, i});
    }
    for (uint32_t r = 0; r < requests; ++r) {
      if (MaybeFinish(batch, r)) break;
    }
  }
}

void Router::StartItem(Batch* batch, const ItemRef& ref) {
  ItemState& item = batch->requests[ref.request].items[ref.item];
  if (item.source >= item.spec.sources.size()) {
    Decide(batch, ref,
           item.code == absl::StatusCode::kOk ? absl::StatusCode::kNotFound : item.code);
    return;
  }
  const Source& source = item.spec.sources[item.source];
  if (source.staged && !item.tried_staged) {
    staged_waiting_.push_back(ref);
    return;
  }
  if (Usable(fetches_[FetchFor(item)].tiers).empty()) {
    Fetch& fetch = fetches_[FetchFor(item)];
    const bool lost = fetch.tiers.empty();
    const absl::StatusCode failure = lost ? fetch.worst : absl::StatusCode::kUnavailable;
    MaybeFree(fetch);
    AdvanceItem(batch, ref, failure);
    return;
  }
  Join(batch, ref);
}

void Router::AdvanceItem(Batch* batch, const ItemRef& ref, absl::StatusCode failure) {
  ItemState& item = batch->requests[ref.request].items[ref.item];
  item.code = Worse(item.code, OutcomeOf(failure));
  const Source& source = item.spec.sources[item.source];
  if (source.staged && !item.tried_staged && !source.tiers.empty()) {
    item.tried_staged = true;
  } else {
    item.tried_staged = false;
    item.source += 1;
  }
  StartItem(batch, ref);
}

void Router::Decide(Batch* batch, const ItemRef& ref, absl::StatusCode code) {
  RequestState& request = batch->requests[ref.request];
  ItemState& item = request.items[ref.item];
  KV_CHECK(!item.decided && request.open_items > 0);
  item.decided = true;
  item.code = code;
  request.open_items -= 1;
  commands_.push_back(ItemDone{ref, code});
}

bool Router::MaybeFinish(Batch* batch, uint32_t r) {
  RequestState& request = batch->requests[r];
  if (request.done || request.open_items > 0 || request.copies > 0) return false;
  request.done = true;
  if (options_.policy.policy == Policy::kRequestAtATime) {  // The next one may begin.
    for (Step::Cursor& cursor : batch->step->cursors) cursor.found_nothing = false;
  }
  RequestDone done{batch->id, r, {}};
  done.codes.reserve(request.items.size());
  for (const ItemState& item : request.items) done.codes.push_back(item.code);
  commands_.push_back(std::move(done));
  batch->open_requests -= 1;
  if (batch->open_requests > 0) return false;
  commands_.push_back(BatchDone{batch->id});
  Step* step = batch->step;
  std::erase(step->batches, batch);
  if (step->batches.empty()) RemoveStep(step);
  deadlines_.erase({batch->deadline, batch->id});
  batches_.erase(batch->id);
  return true;
}

void Router::RemoveStep(Step* step) {
  const auto at = std::find_if(steps_.begin(), steps_.end(),
                               [step](const auto& owned) { return owned.get() == step; });
  const auto index = static_cast<size_t>(at - steps_.begin());
  queued_bytes_ -= step->queued_bytes;
  steps_.erase(at);
  for (size_t& turn : turns_) {
    if (turn > index) turn -= 1;
    if (turn >= steps_.size()) turn = 0;
  }
}

void Router::FailBatch(Batch* batch, absl::StatusCode code, TimeNs now) {
  const OperationId id = batch->id;
  const auto requests = static_cast<uint32_t>(batch->requests.size());
  std::vector<uint32_t> left;  // Fetches.
  for (uint32_t r = 0; r < requests; ++r) {
    RequestState& request = batch->requests[r];
    for (uint32_t i = 0; i < request.items.size(); ++i) {
      const ItemState& item = request.items[i];
      if (item.decided) continue;
      Decide(batch, ItemRef{id, r, i}, code);
      if (item.source >= item.spec.sources.size()) continue;
      const auto it = fetch_of_.find(item.spec.sources[item.source].content);
      if (it != fetch_of_.end()) left.push_back(it->second);
    }
  }
  std::sort(left.begin(), left.end());
  left.erase(std::unique(left.begin(), left.end()), left.end());
  for (const uint32_t fetch : left) {
    NoteOverdue(fetches_[fetch], *batch, now);
    Leave(fetches_[fetch], *batch);
  }
  for (uint32_t r = 0; r < requests; ++r) {
    if (MaybeFinish(batch, r)) break;
  }
  for (const uint32_t fetch : left) FailOverdue(fetches_[fetch]);
}

void Router::Fail(OperationId id, absl::StatusCode code, TimeNs now) {
  const auto it = batches_.find(id);
  if (it == batches_.end()) return;
  FailBatch(it->second.get(), code, now);
  Settle(now);
}

void Router::OnStagedCopy(const ItemRef& ref, absl::StatusCode code, TimeNs now) {
  const auto it = batches_.find(ref.batch);
  KV_CHECK(it != batches_.end());
  Batch* batch = it->second.get();
  RequestState& request = batch->requests[ref.request];
  KV_CHECK(request.copies > 0);
  if (!std::exchange(request.items[ref.item].staged_verified, false)) staged_copies_ -= 1;
  request.copies -= 1;
  if (!request.items[ref.item].decided) {
    if (code == absl::StatusCode::kOk) {
      Decide(batch, ref, code);
    } else {
      AdvanceItem(batch, ref, code);
    }
  }
  MaybeFinish(batch, ref.request);
  Settle(now);
}

void Router::OnStagedGone(const ItemRef& ref, Sources sources, TimeNs now) {
  Batch* const batch = batches_.at(ref.batch).get();
  RequestState& request = batch->requests[ref.request];
  KV_CHECK(request.copies > 0);
  staged_copies_ -= 1;
  request.copies -= 1;
  ItemState& item = request.items[ref.item];
  if (!item.decided) {
    item.spec.sources = std::move(sources);
    item.source = 0;
    item.tried_staged = false;
    StartItem(batch, ref);
  }
  MaybeFinish(batch, ref.request);
  Settle(now);
}

void Router::OnStagedVerified(const ItemRef& ref, TimeNs now) {
  const auto it = batches_.find(ref.batch);
  KV_CHECK(it != batches_.end() && staged_copies_ > 0);
  ItemState& item = it->second->requests[ref.request].items[ref.item];
  KV_CHECK(!item.staged_verified);
  item.staged_verified = true;
  staged_copies_ -= 1;
  Settle(now);
}

void Router::PumpStaged() {
  while (staged_copies_ < options_.staged_copies_max && !staged_waiting_.empty()) {
    const ItemRef ref = staged_waiting_.front();
    staged_waiting_.pop_front();
    const auto it = batches_.find(ref.batch);
    if (it == batches_.end()) continue;
    RequestState& request = it->second->requests[ref.request];
    const ItemState& item = request.items[ref.item];
    if (item.decided) continue;
    request.copies += 1;
    staged_copies_ += 1;
    commands_.push_back(CopyStaged{item.spec.sources[item.source].content, ref});
  }
}

void Router::Tick(TimeNs now) {
  std::vector<Step*> due;
  for (auto& step : steps_) {
    if (step->joining && step->join_deadline <= now) due.push_back(step.get());
  }
  for (Step* step : due) Begin(step);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const OperationId id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());  // A batch may outlive it by the copies that are running.
    FailBatch(batches_.at(id).get(), absl::StatusCode::kDeadlineExceeded, now);
  }
  Settle(now);
}

TimeNs Router::NextDeadline() const {
  TimeNs next = next_hedge_check_;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  for (const auto& step : steps_) {
    if (step->joining) next = std::min(next, step->join_deadline);
  }
  return next;
}

void Router::SetTierInService(TierId tier, bool in_service, TimeNs now) {
  lanes_[tier.value].set_held_out(!in_service);
  ReconsiderAll();
  Settle(now);
}

void Router::Settle(TimeNs now) {
  StartLateCopies();
  for (TierLane& lane : lanes_) {
    if (!lane.UpdateChoked(Silent(lane, now))) continue;
    if (lane.choked()) {
      commands_.push_back(TierOut{lane.id()});
    } else {
      commands_.push_back(TierBack{lane.id()});
    }
    ReconsiderAll();
  }
  PumpStaged();
  Claim(now);
}

}  // namespace kvstream::sched
