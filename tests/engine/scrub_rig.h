// Scrubs over real files without an engine: the test plays the loop. Tiers are real ones; files
// come from the samples of the store's tests.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/base/mutex.h"
#include "server/engine/asides.h"
#include "server/engine/events.h"
#include "server/engine/scrubber.h"
#include "server/engine/stats.h"
#include "server/store/chunk_index.h"
#include "server/store/chunk_key.h"
#include "server/tier/tier.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::engine {

inline constexpr TierId kA{0};
inline constexpr TierId kB{1};

// Three segments, the last one short.
inline constexpr ChunkShape kScrubShape{.payload_bytes = 40 * kKiB + 17,
                                        .segment_bytes = 16 * kKiB};

// What whoever asked for a scrub hears.
class RecordingScrubSink final : public ScrubSink {
 public:
  void Send(const ScrubProgress& progress) override;
  void End(absl::Status status) override;
  bool cancelled() const override { return cancelled_; }

  void Cancel() { cancelled_ = true; }
  std::vector<ScrubProgress> sent();
  bool ended();
  absl::Status end();
  // The last word on a tier.
  ScrubProgress Last(TierId tier);

 private:
  std::atomic<bool> cancelled_{false};
  Mutex mu_;
  std::vector<ScrubProgress> sent_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

// A tier whose setting aside the test holds, or makes fail.
class AsideTier final : public tier::Tier {
 public:
  explicit AsideTier(std::unique_ptr<tier::Tier> inner) : inner_(std::move(inner)) {}

  const tier::TierOptions& options() const override { return inner_->options(); }
  const tier::TierFacts& facts() const override { return inner_->facts(); }
  const tier::TierStats& stats() const override { return stats_; }
  void Read(std::span<const tier::ReadRequest> requests) override { inner_->Read(requests); }
  void Write(tier::WriteRequest request) override { inner_->Write(std::move(request)); }
  void SetAside(tier::SetAsideRequest request) override;
  void Measure(Ticket ticket) override { inner_->Measure(ticket); }
  absl::AnyInvocable<absl::Status()> Recheck() const override { return inner_->Recheck(); }
  tier::TierRoot Root() const override { return {inner_->Root().fd, stats_.remounts.Get()}; }
  bool Stop(TimeNs deadline) override { return inner_->Stop(deadline); }

  // As if another file system had taken the place of the tier's.
  void Remount() { stats_.remounts.Add(); }
  // Opening lets through what waited.
  void Hold(bool closed);
  // The files cannot be read when they are judged once more.
  bool judging_fails = false;

 private:
  const std::unique_ptr<tier::Tier> inner_;
  tier::TierStats stats_;
  bool closed_ = false;
  std::vector<tier::SetAsideRequest> held_;
};

// A file system over a folder that stops to answer while the test wants it to.
class HangingFolder {
 public:
  // Why this machine cannot have one; empty when it can.
  static std::string Missing();

  explicit HangingFolder(const std::string& root);
  HangingFolder(const HangingFolder&) = delete;
  HangingFolder& operator=(const HangingFolder&) = delete;
  ~HangingFolder();

  void Hang();
  void Resume();

 private:
  const std::string root_;
  pid_t server_ = -1;
};

class ScrubRig : public EventPoster, public tier::CompletionSink {
 public:
  // `hanging`: the tier whose file system can be made to hang.
  explicit ScrubRig(size_t tiers = 2, const ScrubOptions& options = {.bytes_per_second = kGiB},
                    std::optional<size_t> hanging = std::nullopt);
  ~ScrubRig() override;

  void Post(Event event) override;
  void OnCompletions(std::span<tier::Completion> completions) override;

  Scrubber& scrubber() { return *scrubber_; }
  AsideTier& tier(size_t i) { return *tiers_[i]; }
  HangingFolder& hanging() { return *hanging_; }
  bool nothing_set_aside() const { return asides_->empty(); }
  store::ChunkIndex& index() { return index_; }
  EngineStats& stats() { return stats_; }
  std::filesystem::path root(size_t tier) const { return folders_[tier]->path(); }

  static KeyDigest Key(uint32_t key) { return store::DigestOfKey(KeyOf(key)); }
  std::filesystem::path FileOf(size_t tier, uint32_t key) const;
  // Writes the chunk's file, and the index knows it.
  void Make(size_t tier, uint32_t key, bool indexed = true);
  // One bit of its payload, or of its header.
  void Flip(size_t tier, uint32_t key, bool header = false);
  bool IsWhole(size_t tier, uint32_t key) const;
  TierSet Holders(uint32_t key) const;

  std::shared_ptr<RecordingScrubSink> Begin(TierSet tiers, uint64_t bytes_per_second = 0);
  // Plays the loop until it holds.
  void LoopUntil(const std::function<bool()>& condition);
  // Scrubs a tier to its end.
  ScrubProgress Scrub(TierId tier);
  // Sees each event before the loop does.
  std::function<void(const Event&)> on_event;

 private:
  static store::ChunkKey KeyOf(uint32_t key);
  void Turn();

  std::vector<std::unique_ptr<tier::TemporaryFolder>> folders_;
  std::unique_ptr<HangingFolder> hanging_;
  std::vector<std::unique_ptr<AsideTier>> tiers_;
  EngineStats stats_;
  store::ChunkIndex index_;
  std::unique_ptr<Asides> asides_;
  std::unique_ptr<Scrubber> scrubber_;
  Mutex mu_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
  std::vector<tier::Completion> completions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::engine
