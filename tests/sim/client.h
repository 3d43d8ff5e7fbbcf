// A worker as the engine knows it: a session with a stream and one host buffer. It sends
// operations, hears what becomes of them, and checks every promise that was made to it: each
// operation ends once, and in time; bytes that were delivered are those of the key; what failed
// could not have been served; nothing touches its memory once the engine has let go of it.
//
// Thread rule: one thread. Ownership: the parts outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "server/engine/api.h"
#include "server/engine/events.h"
#include "server/memory/sealed_memory.h"
#include "tests/sim/engine_driver.h"
#include "tests/sim/journal.h"
#include "tests/sim/memory_watch.h"
#include "tests/sim/names.h"
#include "tests/sim/replicas.h"
#include "tests/support/sim_random.h"

namespace kvstream::sim {

class Client final : public engine::SessionSink {
 public:
  struct Parts {
    Names* names = nullptr;
    Journal* journal = nullptr;
    MemoryWatch* watch = nullptr;
    Replicas* replicas = nullptr;
    SimRandom* random = nullptr;
    engine::EngineDriver* driver = nullptr;
    // What an operation may take beyond its deadline or its cancellation: the copies that run.
    TimeNs grace = 0;
    bool deadlines = false;  // On every operation.
    // Keys of stores that were cancelled, by their client or by its end; of all clients.
    std::set<uint32_t>* given_up = nullptr;
  };
  static constexpr uint32_t kSlots = 24;

  Client(const Parts& parts, SessionId id);

  // Its side of the conversation. `self` owns this.
  void Connect(const std::shared_ptr<Client>& self);
  void Read();
  void Store();
  void CancelOne();
  // An operation under the id of one that runs, which ends the session.
  void ReuseId();
  void Refuse();
  void Heartbeat();
  void ForwardBegan();
  void Lookup();
  void ReleaseLease();
  // One of its two connections breaks.
  void Die();

  void Send(engine::SessionEvent event) override;
  void Flush() override {}
  void End(absl::Status status) override;
  // The handoff connection was closed: its memory is its own again.
  void OnClosed();

  SessionId id() const { return id_; }
  bool over() const { return over_; }
  bool closed() const { return closed_; }
  size_t running() const { return ops_.size(); }
  // Whether a copy may touch these bytes, in the engine's mapping of the buffer.
  bool Owns(std::span<const std::byte> bytes) const;
  bool MayBeTouched(std::span<const std::byte> bytes) const;
  // What should have ended by now.
  void CheckBounds();
  // Reads of which everything could be served should have ended, though some I/O never ends.
  void CheckServed();

 private:
  struct Chunk {
    uint32_t request = 0;
    uint32_t key = 0;
    uint32_t version = 0;
    uint32_t slot = 0;
    Replicas::HopeId hope = 0;
    bool ended = false;  // Delivered or failed; released.
    bool durable_ended = false;
    absl::StatusCode code = absl::StatusCode::kOk;
  };
  struct Request {
    std::vector<uint32_t> chunks;  // Into the operation's.
    bool done = false;
  };
  struct Op {
    bool store = false;
    bool cancelled = false;
    bool want_durable = false;
    bool heard = false;  // It was not refused.
    bool all_released = false;
    TimeNs deadline = kNever;
    TimeNs admission_deadline = kNever;
    TimeNs bound = kNever;  // It has ended by then.
    std::vector<Request> requests;
    std::vector<Chunk> chunks;
  };

  void Post(engine::SessionMessage message);
  TimeNs SomeTime(TimeNs most) const;
  std::span<std::byte> Slot(uint32_t slot, uint32_t key) const;
  std::span<const std::byte> EngineSlot(uint32_t slot) const;
  bool TakeSlot(uint32_t* slot);
  void FreeSlots(const Op& op);
  void MarkEnding();
  void NoteGivenUp(const Op& op);
  Op* Find(uint64_t client_op, bool store, const char* event);

  void On(const engine::SessionOpened& event);
  void On(const engine::HeartbeatReply&) {}
  void On(const engine::ChunkResults& event);
  void On(const engine::RequestDone& event);
  void On(const engine::StoreReleased& event);
  void On(const engine::StoreDurable& event);
  void On(const engine::Quiesced& event);
  void On(const engine::PartMoved& event);
  void CheckDelivered(const Chunk& chunk);
  void CheckFailed(const Op& op, const Chunk& chunk);
  void CheckReleased(const Op& op, const Chunk& chunk);
  void CheckPublished(const Chunk& chunk);
  void CheckQuiesced(const Op& op, const absl::Status& status);
  void CheckLookup(const std::vector<uint32_t>& keys, const engine::LookupResult& result);

  const Parts parts_;
  Journal& journal_;
  SimRandom& random_;
  const SessionId id_;
  std::unique_ptr<memory::SealedMemory> buffer_;  // The client's own mapping.
  std::span<const std::byte> engine_buffer_;      // The engine's, until it is closed.
  std::vector<bool> taken_;
  std::vector<bool> used_;  // Some time.
  std::map<uint64_t, Op> ops_;
  std::vector<uint64_t> leases_;
  uint64_t next_op_ = 1;
  bool opened_ = false;
  bool over_ = false;    // No stream any more.
  bool ending_ = false;  // The engine has been told, or has said so.
  bool closed_ = false;
  TimeNs close_bound_ = kNever;
};

}  // namespace kvstream::sim
