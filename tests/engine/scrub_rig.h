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

class ScrubRig : public EventPoster, public tier::CompletionSink {
 public:
  explicit ScrubRig(size_t tiers = 2, const ScrubOptions& options = {.bytes_per_second = kGiB});
  ~ScrubRig() override;

  void Post(Event event) override;
  void OnCompletions(std::span<tier::Completion> completions) override;

  Scrubber& scrubber() { return *scrubber_; }
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
  std::vector<std::unique_ptr<tier::Tier>> tiers_;
  EngineStats stats_;
  store::ChunkIndex index_;
  std::unique_ptr<Asides> asides_;
  std::unique_ptr<Scrubber> scrubber_;
  Mutex mu_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
  std::vector<tier::Completion> completions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::engine
