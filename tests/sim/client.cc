// What a client sends. What it hears is in client_events.cc.
#include "tests/sim/client.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "server/base/check.h"
#include "server/base/unique_fd.h"

namespace kvstream::sim {
namespace {

using memory::SealedMemory;

// As it comes, so that what is never used is never touched.
constexpr int kFree = 0;
constexpr int kPoison = 0xAB;

}  // namespace

Client::Client(const Parts& parts, SessionId id)
    : parts_(parts),
      journal_(*parts.journal),
      random_(*parts.random),
      id_(id),
      taken_(kSlots),
      used_(kSlots) {}

void Client::Connect(const std::shared_ptr<Client>& self) {
  journal_.Note("session {} connects", id_.value);
  auto memory = SealedMemory::Create("sim-buffer", kSlots * parts_.names->slot_bytes(), false);
  KV_CHECK(memory.ok());
  auto mapping = SealedMemory::Attach(UniqueFd(dup((*memory)->fd())), 0);
  KV_CHECK(mapping.ok());
  buffer_ = *std::move(mapping);
  engine_buffer_ = (*memory)->bytes();
  engine::Engine& engine = parts_.driver->engine();
  engine.Post(engine::SessionConnected{id_});
  engine.Post(engine::BufferAttached{id_, 1, *std::move(memory)});
  engine.Post(engine::StreamOpened{id_, "sim", self});
}

void Client::Post(engine::SessionMessage message) {
  parts_.driver->engine().Post(engine::MessageArrived{id_, this, std::move(message)});
}

TimeNs Client::SomeTime(TimeNs most) const {
  return journal_.now() + static_cast<TimeNs>(random_.Below(static_cast<uint64_t>(most) + 1));
}

std::span<std::byte> Client::Slot(uint32_t slot, uint32_t key) const {
  return buffer_->bytes().subspan(slot * parts_.names->slot_bytes(),
                                  parts_.names->shape(key).payload_bytes);
}

std::span<const std::byte> Client::EngineSlot(uint32_t slot) const {
  const uint64_t bytes = parts_.names->slot_bytes();
  return engine_buffer_.subspan(slot * bytes, bytes);
}

bool Client::TakeSlot(uint32_t* slot) {
  const auto free = std::find(taken_.begin(), taken_.end(), false);
  if (free == taken_.end()) return false;
  *free = true;
  *slot = static_cast<uint32_t>(free - taken_.begin());
  const uint64_t bytes = parts_.names->slot_bytes();
  const std::span memory = buffer_->bytes().subspan(*slot * bytes, bytes);
  const auto touched =
      std::find_if(memory.begin(), memory.end(), [](std::byte b) { return b != std::byte{kFree}; });
  if (touched != memory.end()) journal_.Fail("memory was written after its operation ended");
  return true;
}

void Client::FreeSlots(const Op& op) {
  for (const Chunk& chunk : op.chunks) {
    if (parts_.watch->InUse(EngineSlot(chunk.slot))) {
      journal_.Fail(fmt::format("session {}: memory is in use after Quiesced", id_.value));
    }
    const std::span memory = Slot(chunk.slot, chunk.key);
    std::memset(memory.data(), kFree, memory.size());
    taken_[chunk.slot] = false;
  }
}

void Client::Read() {
  engine::ReadStep step;
  Op op;
  step.client_op = next_op_++;
  step.joint = random_.Chance(0.4);
  if (step.joint && random_.Chance(0.6)) {
    step.step_id = random_.Between(1, 3);
    step.ranks = static_cast<uint32_t>(random_.Between(1, 3));
  }
  step.join_deadline = SomeTime(300 * kMillisecond);
  if (parts_.deadlines || random_.Chance(0.5))
    step.deadline = SomeTime(random_.Chance(0.2) ? 0 : 2 * kSecond);
  const uint64_t requests = step.joint ? random_.Between(1, 2) : random_.Between(1, 4);
  for (uint32_t r = 0; r < requests; ++r) {
    engine::ReadRequest request;
    request.request_id = 100 + r;
    request.name_space = parts_.names->name_space();
    Request& mine = op.requests.emplace_back();
    for (uint64_t n = random_.Between(1, 4); n > 0; --n) {
      Chunk chunk;
      if (!TakeSlot(&chunk.slot)) break;
      chunk.request = r;
      chunk.key = static_cast<uint32_t>(random_.Below(parts_.names->keys()));
      const KeyDigest& key = parts_.names->digest(chunk.key);
      chunk.hope = parts_.replicas->BeginHope(chunk.key, parts_.driver->StagedForGood(key));
      const std::span memory = Slot(chunk.slot, chunk.key);
      std::memset(memory.data(), kPoison, memory.size());
      engine::ReadChunk& asked = request.chunks.emplace_back();
      asked.key = key;
      asked.group = parts_.names->key(chunk.key).group;
      asked.place = engine::HostRange{1, chunk.slot * parts_.names->slot_bytes()};
      mine.chunks.push_back(static_cast<uint32_t>(op.chunks.size()));
      op.chunks.push_back(chunk);
      journal_.Note("session {} op {}: reads key {}, request {}", id_.value, step.client_op,
                    chunk.key, r);
    }
    step.requests.push_back(std::move(request));
  }
  if (step.requests.front().chunks.empty()) return;  // No memory is left.
  std::erase_if(step.requests, [](const auto& request) { return request.chunks.empty(); });
  op.requests.resize(step.requests.size());
  op.deadline = step.deadline;
  if (op.deadline != kNever) op.bound = op.deadline + parts_.grace;
  ops_[step.client_op] = std::move(op);
  Post(std::move(step));
}

void Client::Store() {
  engine::Store store;
  Op op;
  op.store = true;
  store.client_op = next_op_++;
  store.name_space = parts_.names->name_space();
  for (uint64_t n = random_.Between(1, 5); n > 0; --n) {
    Chunk chunk;
    if (!TakeSlot(&chunk.slot)) break;
    chunk.key = static_cast<uint32_t>(random_.Below(parts_.names->keys()));
    chunk.version = static_cast<uint32_t>(random_.Below(kVersions));
    const auto bytes = parts_.names->BytesOf(chunk.key, chunk.version);
    std::memcpy(Slot(chunk.slot, chunk.key).data(), bytes.data(), bytes.size());
    parts_.names->NoteStored(chunk.key, chunk.version);
    store.chunks.push_back({parts_.names->key(chunk.key), parts_.names->digest(chunk.key),
                            engine::HostRange{1, chunk.slot * parts_.names->slot_bytes()}});
    op.chunks.push_back(chunk);
    journal_.Note("session {} op {}: stores key {} version {}", id_.value, store.client_op,
                  chunk.key, chunk.version);
  }
  if (op.chunks.empty()) return;
  store.admission_deadline = random_.Chance(0.2) ? kNever : SomeTime(500 * kMillisecond);
  store.want_durable = random_.Chance(0.6);
  if (random_.Chance(0.4)) store.deadline = SomeTime(2 * kSecond);
  op.admission_deadline = store.admission_deadline;
  op.want_durable = store.want_durable;
  op.deadline = store.deadline;
  if (op.deadline != kNever) op.bound = op.deadline + parts_.grace;
  ops_[store.client_op] = std::move(op);
  Post(std::move(store));
}

void Client::CancelOne() {
  if (ops_.empty()) return;
  auto it = ops_.begin();
  std::advance(it, random_.Below(ops_.size()));
  journal_.Note("session {} cancels op {}", id_.value, it->first);
  it->second.cancelled = true;
  NoteGivenUp(it->second);
  it->second.bound = std::min(it->second.bound, journal_.now() + parts_.grace);
  Post(engine::Cancel{it->first});
}

void Client::ReuseId() {
  if (ops_.empty()) return;
  engine::ReadStep step;
  step.client_op = ops_.begin()->first;
  engine::ReadRequest& request = step.requests.emplace_back();
  request.name_space = parts_.names->name_space();
  engine::ReadChunk& chunk = request.chunks.emplace_back();
  chunk.key = parts_.names->digest(0);
  chunk.group = parts_.names->key(0).group;
  // Where the operation ends before the engine hears of this, the buffer that does not exist ends
  // the second use of its id with NOT_FOUND.
  chunk.place = engine::HostRange{7, 0};
  journal_.Note("session {} uses the id of op {} again", id_.value, step.client_op);
  Post(std::move(step));
}

void Client::Refuse() {
  const uint64_t client_op = next_op_++;
  ops_[client_op] = {};
  ops_[client_op].bound = journal_.now() + parts_.grace;
  Post(engine::Refused{client_op, absl::InvalidArgumentError("refused by rpc")});
}

void Client::Heartbeat() { Post(engine::Heartbeat{next_op_}); }

void Client::ForwardBegan() { Post(engine::ForwardBegan{1}); }

void Client::Lookup() {
  engine::Lookup lookup;
  std::vector<uint32_t> keys;
  for (uint64_t n = random_.Between(1, 8); n > 0; --n) {
    keys.push_back(static_cast<uint32_t>(random_.Below(parts_.names->keys())));
    lookup.digests.push_back(parts_.names->digest(keys.back()));
  }
  lookup.per_key = true;
  lookup.session = id_;
  if (random_.Chance(0.7)) lookup.lease_for = static_cast<TimeNs>(random_.Between(1, kSecond));
  // The reply may come after the client's end, but not after the simulation's.
  lookup.reply = [this, keys](absl::StatusOr<engine::LookupResult> result) {
    if (result.ok()) {
      CheckLookup(keys, *result);
    } else if (!ending_ && !over_) {
      journal_.Fail(fmt::format("a lookup failed: {}", result.status().ToString()));
    }
  };
  parts_.driver->engine().Post(std::move(lookup));
}

void Client::ReleaseLease() {
  if (leases_.empty()) return;
  Post(engine::Release{leases_.back()});
  leases_.pop_back();
}

void Client::NoteGivenUp(const Op& op) {
  if (!op.store) return;
  for (const Chunk& chunk : op.chunks) parts_.given_up->insert(chunk.key);
}

void Client::MarkEnding() {
  ending_ = true;
  for (const auto& [client_op, op] : ops_) NoteGivenUp(op);
  close_bound_ = std::min(close_bound_, journal_.now() + parts_.grace);
}

void Client::Die() {
  engine::Engine& engine = parts_.driver->engine();
  MarkEnding();
  if (random_.Chance(0.5)) {
    journal_.Note("session {}: its handoff connection breaks", id_.value);
    engine.Post(engine::HandoffClosed{id_});
  } else {
    journal_.Note("session {}: its stream breaks", id_.value);
    engine.Post(engine::StreamClosed{id_, this});
  }
}

}  // namespace kvstream::sim
