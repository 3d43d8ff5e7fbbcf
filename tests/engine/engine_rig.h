// An engine over real tiers whose gates the test holds: a closed gate keeps requests from reaching
// the disk, as a hung file system would, for exactly as long as the test wants. The test plays the
// rpc room.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/engine/engine.h"
#include "server/memory/sealed_memory.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "server/store/namespace.h"
#include "server/tier/tier.h"

namespace kvstream::engine {

// first .. first + count - 1.
std::vector<uint64_t> Keys(uint64_t first, uint64_t count);

// What a kind of I/O of a tier fails with; 0: it does not.
struct FailingIo {
  std::atomic<int> read{0};
  std::atomic<int> write{0};
  std::atomic<int> open{0};
};

class GatedTier final : public tier::Tier {
 public:
  GatedTier(std::unique_ptr<tier::Tier> inner, std::shared_ptr<FailingIo> failing)
      : inner_(std::move(inner)), failing_(std::move(failing)) {}

  const tier::TierOptions& options() const override { return inner_->options(); }
  const tier::TierFacts& facts() const override { return inner_->facts(); }
  const tier::TierStats& stats() const override { return inner_->stats(); }
  void Read(std::span<const tier::ReadRequest> requests) override;
  void Write(tier::WriteRequest request) override;
  void SetAside(tier::SetAsideRequest request) override { inner_->SetAside(std::move(request)); }
  void Measure(Ticket ticket) override { inner_->Measure(ticket); }
  // Fails while some I/O does.
  absl::AnyInvocable<absl::Status()> Recheck() const override;
  tier::TierRoot Root() const override { return inner_->Root(); }
  bool Stop(TimeNs deadline) override;

  // Opening lets through what waited.
  void GateReads(bool closed);
  void GateWrites(bool closed);
  size_t reads_held() const;
  FailingIo& failing() { return *failing_; }

 private:
  const std::unique_ptr<tier::Tier> inner_;
  const std::shared_ptr<FailingIo> failing_;
  mutable Mutex mu_;
  bool reads_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool writes_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<tier::ReadRequest> reads_ ABSL_GUARDED_BY(mu_);
  std::vector<tier::WriteRequest> writes_ ABSL_GUARDED_BY(mu_);
};

// Records what a session hears.
class RecordingSink final : public SessionSink {
 public:
  void Send(SessionEvent event) override;
  void Flush() override {}
  void End(absl::Status status) override;

  // The first event of this kind for the operation, waiting for it; a failure when none comes.
  template <typename T>
  T Wait(uint64_t client_op);
  template <typename T>
  bool Has(uint64_t client_op) const;
  // All of this kind so far.
  template <typename T>
  std::vector<T> All(uint64_t client_op) const;
  absl::Status WaitEnd();

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<SessionEvent> events_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);
};

class EngineRig : public HandoffPeer {
 public:
  static constexpr uint64_t kChunkBytes = 64 * kKiB;
  static constexpr uint64_t kSegmentBytes = 16 * kKiB;

  explicit EngineRig(const std::function<void(EngineOptions&)>& tweak = nullptr);
  ~EngineRig() override;

  Engine& engine() { return *engine_; }
  const EngineStats& stats() const { return engine_->stats(); }
  GatedTier& tier(size_t i) { return *tiers_[i]; }
  std::span<std::byte> pool() { return pool_->bytes(); }
  void WaitUntil(const std::function<bool()>& condition, const char* what);

  // A session with a stream and one buffer, number 1, of 64 chunks.
  SessionId Open(std::shared_ptr<SessionSink> sink);
  std::span<std::byte> buffer(SessionId session);
  void Send(SessionId session, const SessionSink& sink, SessionMessage message);
  bool closed(SessionId session) const;
  void Close(SessionId session) override;

  // Chunk `key` at slot `slot` of the buffer; keys are small numbers.
  Store StoreOf(uint64_t client_op, const std::vector<uint64_t>& keys) const;
  ReadStep StepOf(uint64_t client_op, const std::vector<uint64_t>& keys) const;
  void Fill(SessionId session, const std::vector<uint64_t>& keys);
  bool Holds(SessionId session, const std::vector<uint64_t>& keys);
  bool Holds(SessionId session, uint64_t key, size_t slot);
  void Poison(SessionId session);
  bool IsPoisoned(SessionId session, size_t slot);

 private:
  store::ChunkKey KeyOf(uint64_t key) const;

  std::filesystem::path dir_;
  std::unique_ptr<memory::SealedMemory> pool_;
  std::unique_ptr<gpu::Driver> driver_;
  std::unique_ptr<gpu::Gpus> gpus_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<GatedTier>> tiers_;
  store::NamespaceRegistry registry_{store::NamespaceLimits{.chunk_bytes_max = kMiB}};
  store::NamespaceRef name_space_;
  uint64_t next_session_ = 1;
  // The test's own mapping of each session's buffer.
  std::vector<std::unique_ptr<memory::SealedMemory>> mappings_;
  mutable Mutex mu_;
  std::vector<SessionId> closed_ ABSL_GUARDED_BY(mu_);
};

// The only chunk file below the root of a tier.
struct OneFile {
  explicit OneFile(const std::string& root) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      if (entry.path().extension() == ".kv") path = entry.path();
    }
    std::vector<std::byte> block(kHeaderBytes);
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(block.data()), kHeaderBytes);
    const auto decoded = store::DecodeHeader(block);
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    if (!decoded.ok()) return;
    header = *decoded;
    key = store::DigestOfEncodedKey(header.encoded_key);
    name_space = store::NamespaceOf(header);
  }
  void FlipByte() const {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(kHeaderBytes);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(kHeaderBytes);
    file.put(byte);
  }
  FileDamaged Damaged(TierId tier) const {
    return {tier, 0, store::ChunkPath(name_space, key), key, nullptr, {}};
  }

  std::filesystem::path path;
  store::ChunkHeader header;
  KeyDigest key;
  NamespaceId name_space;
};

}  // namespace kvstream::engine
