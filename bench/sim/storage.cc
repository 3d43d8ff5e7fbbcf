#include "bench/sim/storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "server/base/check.h"

namespace kvstream::sim {
namespace {

// Chunk numbers may be small; their hash is what a digest would be.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

ContentId ContentOf(uint64_t chunk) {
  ContentId id;
  const uint64_t mixed = Mix(chunk);
  std::memcpy(id.bytes.data(), &mixed, sizeof mixed);
  std::memcpy(id.bytes.data() + sizeof mixed, &chunk, sizeof chunk);
  return id;
}

uint64_t ChunkOf(const ContentId& content) {
  uint64_t chunk;
  std::memcpy(&chunk, content.bytes.data() + sizeof chunk, sizeof chunk);
  return chunk;
}

TimeNs TimeOf(uint64_t bytes, double bytes_per_second) {
  return static_cast<TimeNs>(static_cast<double>(bytes) / bytes_per_second * 1e9);
}

std::vector<Device*> WithShared(std::vector<Device*> tiers, const SharedTier& shared) {
  if (shared.device != nullptr) tiers.push_back(shared.device);
  return tiers;
}

}  // namespace

Storage::Storage(const StorageOptions& options, EventQueue* events, std::vector<Device*> tiers,
                 Device* link, SharedTier* shared)
    : options_(options),
      events_(events),
      tiers_(WithShared(std::move(tiers), *shared)),
      link_(link),
      shared_(shared),
      slots_(options.pool_bytes, options.reserved_bytes),
      router_(options.router, &slots_),
      writes_(options.writes),
      replication_(options.replication) {
  stats_.read_bytes.resize(tiers_.size());
  stats_.written_bytes.resize(tiers_.size());
}

TierSet Storage::TiersOf(uint64_t chunk) const {
  TierSet tiers;
  const auto it = known_.find(chunk);
  if (it != known_.end()) tiers = it->second.tiers;
  if (InShared(chunk)) tiers.Add(last_tier());
  return tiers;
}

bool Storage::InShared(uint64_t chunk) const {
  return shared_->shared && shared_->chunks.contains(chunk);
}

bool Storage::IsShared(TierId tier) const {
  return shared_->device != nullptr && tier.value == tiers_.size() - 1;
}

bool Storage::Has(uint64_t chunk) const {
  const auto it = known_.find(chunk);
  return (it != known_.end() && it->second.staged) || !TiersOf(chunk).empty();
}

size_t Storage::LeadingRun(const Request& chunks) const {
  const auto gap =
      std::find_if(chunks.begin(), chunks.end(), [this](uint64_t c) { return !Has(c); });
  return static_cast<size_t>(gap - chunks.begin());
}

OperationId Storage::Read(const std::vector<Request>& requests, std::function<void()> done) {
  sched::BatchSpec spec;
  spec.id = OperationId{next_batch_++};
  spec.joint = true;
  for (const Request& chunks : requests) {
    std::vector<sched::Item>& items = spec.requests.emplace_back();
    for (const uint64_t chunk : chunks) {
      sched::Item& item = items.emplace_back();
      item.shape = options_.shape;
      const auto it = known_.find(chunk);
      const bool staged = it != known_.end() && it->second.staged;
      const TierSet tiers = TiersOf(chunk);
      if (staged || !tiers.empty()) {
        item.sources.push_back(sched::Source{ContentOf(chunk), tiers, staged});
      }
      replication_.NoteRead(options_.shape.payload_bytes);
    }
  }
  uint64_t bytes = 0;
  for (const Request& chunks : requests) bytes += chunks.size() * options_.shape.payload_bytes;
  batches_[spec.id] = Waiting{std::move(done), bytes};
  waiting_bytes_ += bytes;
  const OperationId id = spec.id;
  router_.Admit(std::move(spec), events_->now());
  Pump();
  return id;
}

void Storage::Cancel(OperationId batch) {
  router_.Fail(batch, absl::StatusCode::kCancelled, events_->now());
  Pump();
}

void Storage::Store(const Request& chunks) {
  for (const uint64_t chunk : chunks) {
    if (Has(chunk)) continue;
    Staged staged{chunk, {}};
    for (uint32_t s = 0; s < options_.shape.segments(); ++s) {
      const auto slot = slots_.AllocateWrite(options_.shape.PaddedBytesOf(s));
      if (!slot) break;
      staged.slots.push_back(*slot);
    }
    if (staged.slots.size() < options_.shape.segments()) {
      for (const sched::Slot& slot : staged.slots) slots_.Free(slot);
      stats_.dropped_chunks += 1;
      continue;
    }
    stats_.stored_chunks += 1;
    replication_.NoteStored(options_.shape.payload_bytes);
    writes_.set_replicated(replication_.Share(OthersPart()));
    const sched::StagedId id{next_staged_++};
    known_[chunk].staged = true;
    staged_.emplace(id, std::move(staged));
    writes_.Add(id, options_.shape.payload_bytes, Mix(chunk), events_->now());
  }
  Pump();
}

void Storage::Place(uint64_t chunk, TierSet tiers) {
  known_[chunk].tiers = tiers;
  if (shared_->device != nullptr && tiers.Has(last_tier())) shared_->chunks.insert(chunk);
}

uint64_t Storage::chunks_on_shared() const {
  return static_cast<uint64_t>(std::count_if(known_.begin(), known_.end(), [this](const auto& k) {
    return k.second.tiers.Has(last_tier());
  }));
}

double Storage::RateOf(TierId tier) const {
  // A tier that nobody has read from yet has been written to.
  const double rate = router_.lane(tier).rate();
  return rate > 0 ? rate : writes_.rate(tier);
}

double Storage::OthersPart() const {
  double all = 0;
  for (uint32_t t = 0; t < tiers_.size(); ++t) {
    if (RateOf(TierId{t}) <= 0) return 0.5;
    all += RateOf(TierId{t});
  }
  return 1 - RateOf(TierId{0}) / all;
}

Storage::Request Storage::OnTiers(const std::vector<Request>& requests) const {
  Request chunks;
  for (const Request& request : requests) {
    for (const uint64_t chunk : request) {
      const auto it = known_.find(chunk);
      if (it == known_.end() || !it->second.staged) chunks.push_back(chunk);
    }
  }
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  return chunks;
}

double Storage::ExpectedSeconds(const Request& chunks) const {
  std::vector<double> alone(tiers_.size());  // Bytes that no other tier holds.
  double all = 0;
  double rates = 0;
  for (const uint64_t chunk : OnTiers({chunks})) {
    const TierSet tiers = TiersOf(chunk);
    const auto bytes = static_cast<double>(options_.shape.payload_bytes);
    all += bytes;
    for (uint32_t t = 0; t < tiers_.size(); ++t) {
      if (tiers == TierSet::Of(TierId{t})) alone[t] += bytes;
    }
  }
  for (uint32_t t = 0; t < tiers_.size(); ++t) rates += RateOf(TierId{t});
  if (rates == 0) return 0;
  double seconds = (static_cast<double>(waiting_bytes_) + all) / rates;
  for (uint32_t t = 0; t < tiers_.size(); ++t) {
    const double rate = RateOf(TierId{t});
    if (rate > 0) seconds = std::max(seconds, alone[t] / rate);
  }
  return seconds;
}

void Storage::Pump() {
  if (pumping_) return;
  pumping_ = true;
  bool more = true;
  while (more) {
    router_.TakeCommands(&commands_);
    more = !commands_.empty();
    for (const sched::Command& command : commands_) Execute(command);
    TierSet demand;
    for (uint32_t t = 0; t < tiers_.size(); ++t) {
      if (router_.HasDemand(TierId{t})) demand.Add(TierId{t});
    }
    const auto writes = writes_.Poll(demand, /*room_wanted=*/false, events_->now());
    more = more || !writes.empty();
    for (const sched::WriteCommand& write : writes) Execute(write);
  }
  CopyReactively();
  pumping_ = false;
  ScheduleWake();
}

void Storage::ScheduleWake() {
  const TimeNs next =
      std::max(events_->now(), std::min(router_.NextDeadline(), writes_.NextDeadline()));
  if (next >= wake_at_) return;
  wake_at_ = next;
  events_->At(next, [this, next] {
    if (wake_at_ == next) wake_at_ = kNever;
    router_.Tick(events_->now());
    Pump();
  });
}

void Storage::Execute(const sched::Command& command) {
  if (const auto* read = std::get_if<sched::ReadSegment>(&command)) {
    stats_.read_bytes[read->tier.value] += read->slot.bytes;
    events_->At(ReadFrom(read->tier, read->slot.bytes), [this, ticket = read->ticket] {
      router_.OnRead(ticket, absl::StatusCode::kOk, events_->now());
      Pump();
    });
  } else if (const auto* copy = std::get_if<sched::CopySegment>(&command)) {
    NoteForReactiveCopy(*copy);
    const TimeNs took = TimeOf(copy->slot.bytes, options_.copy_bytes_per_second);
    events_->At(events_->now() + took, [this, ticket = copy->ticket, items = copy->items] {
      router_.OnCopy(ticket, items, absl::StatusCode::kOk, events_->now());
      Pump();
    });
  } else if (const auto* staged = std::get_if<sched::CopyStaged>(&command)) {
    const TimeNs took = TimeOf(options_.shape.payload_bytes, options_.copy_bytes_per_second);
    events_->At(events_->now() + took, [this, item = staged->item] {
      router_.OnStagedCopy(item, absl::StatusCode::kOk, events_->now());
      Pump();
    });
  } else if (const auto* done = std::get_if<sched::BatchDone>(&command)) {
    const auto it = batches_.find(done->batch);
    waiting_bytes_ -= it->second.bytes;
    events_->At(events_->now(), std::move(it->second.done));
    batches_.erase(it);
  }
}

void Storage::Execute(const sched::WriteCommand& command) {
  if (const auto* write = std::get_if<sched::StartWrite>(&command)) {
    StartWrite(*write);
  } else if (const auto* finished = std::get_if<sched::ChunkFinished>(&command)) {
    const auto it = staged_.find(finished->chunk);
    known_[it->second.chunk].staged = false;
    for (const sched::Slot& slot : it->second.slots) slots_.Free(slot);
    staged_.erase(it);
    router_.OnSlotsFreed(events_->now());
  } else {
    stats_.dropped_copies += 1;
  }
}

void Storage::StartWrite(const sched::StartWrite& write) {
  const uint64_t chunk = staged_.at(write.chunk).chunk;
  // The daemon finds the file there and verifies it, which moves next to nothing.
  const bool exists = IsShared(write.tier) && InShared(chunk);
  const uint64_t bytes = exists ? 0 : options_.shape.payload_bytes;
  if (exists) stats_.writes_saved += 1;
  events_->At(WriteTo(write.tier, bytes),
              [this, write, bytes] { Written(write.chunk, write.tier, bytes); });
}

void Storage::Written(sched::StagedId id, TierId tier, uint64_t bytes) {
  const uint64_t chunk = staged_.at(id).chunk;
  stats_.written_bytes[tier.value] += bytes;
  known_[chunk].tiers.Add(tier);
  if (IsShared(tier)) shared_->chunks.insert(chunk);
  writes_.OnWritten(id, tier, true, events_->now());
  Pump();
}

bool Storage::WantsCopies(uint64_t chunk) const {
  const double part = static_cast<double>(Mix(~chunk) >> 11) * 0x1p-53;
  return part < replication_.ShareOfRead(OthersPart());
}

void Storage::NoteForReactiveCopy(const sched::CopySegment& copy) {
  const uint64_t chunk = ChunkOf(copy.content);
  if (copy.segment == 0 && TiersOf(chunk).size() == 1 && WantsCopies(chunk)) {
    to_copy_.push_back(chunk);
  }
}

void Storage::CopyReactively() {
  while (!to_copy_.empty() && !copying_) {
    const uint64_t chunk = to_copy_.front();
    uint32_t t = 0;
    while (t < tiers_.size() && TiersOf(chunk).Has(TierId{t})) ++t;
    if (t < tiers_.size() && router_.HasDemand(TierId{t})) return;
    to_copy_.pop_front();
    if (t == tiers_.size()) continue;
    copying_ = true;
    const uint64_t bytes = options_.shape.payload_bytes;
    events_->At(WriteTo(TierId{t}, bytes), [this, chunk, t, bytes] {
      copying_ = false;
      stats_.written_bytes[t] += bytes;
      Place(chunk, known_[chunk].tiers | TierSet::Of(TierId{t}));
      CopyReactively();
    });
  }
}

TimeNs Storage::ReadFrom(TierId tier, uint64_t bytes) {
  const TimeNs end = tiers_[tier.value]->Read(bytes, events_->now());
  return IsShared(tier) && link_ != nullptr ? std::max(end, link_->Read(bytes, events_->now()))
                                            : end;
}

TimeNs Storage::WriteTo(TierId tier, uint64_t bytes) {
  const TimeNs end = tiers_[tier.value]->Write(bytes, events_->now());
  return IsShared(tier) && link_ != nullptr ? std::max(end, link_->Write(bytes, events_->now()))
                                            : end;
}

}  // namespace kvstream::sim
