// A fake tier with an ear on it: tells the watch which memory its requests use, and the replicas
// what became of them, before the engine hears of it.
//
// Thread rule: one thread. Ownership: the parts outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "server/tier/tier.h"
#include "tests/sim/journal.h"
#include "tests/sim/memory_watch.h"
#include "tests/sim/names.h"
#include "tests/sim/replicas.h"
#include "tests/support/fake_tier.h"

namespace kvstream::sim {

class TappedTier final : public tier::Tier, public tier::CompletionSink {
 public:
  struct Parts {
    const Names* names = nullptr;
    Journal* journal = nullptr;
    MemoryWatch* watch = nullptr;
    Replicas* replicas = nullptr;
  };
  TappedTier(const Parts& parts, test::FakeTier::Options options)
      : parts_(parts), tier_(std::move(options), this) {}

  test::FakeTier& fake() { return tier_; }
  // Of the engine that is now.
  void set_sink(tier::CompletionSink* sink) { sink_ = sink; }
  // The machine dies.
  void Crash();

  const tier::TierOptions& options() const override { return tier_.options(); }
  const tier::TierFacts& facts() const override { return tier_.facts(); }
  const tier::TierStats& stats() const override { return tier_.stats(); }
  void Read(std::span<const tier::ReadRequest> requests) override;
  void Write(tier::WriteRequest request) override;
  void SetAside(tier::SetAsideRequest request) override;
  void Measure(Ticket ticket) override { tier_.Measure(ticket); }
  absl::AnyInvocable<absl::Status()> Recheck() const override { return tier_.Recheck(); }
  tier::TierRoot Root() const override { return tier_.Root(); }
  [[nodiscard]] bool Stop(TimeNs deadline) override { return tier_.Stop(deadline); }
  void OnCompletions(std::span<tier::Completion> completions) override;

 private:
  struct Running {
    uint32_t key = 0;
    MemoryWatch::User user = 0;
  };
  using Kind = tier::Completion::Kind;

  Running& Begin(Kind kind, Ticket ticket, const std::string& path);

  const Parts parts_;
  tier::CompletionSink* sink_ = nullptr;
  std::map<std::pair<Kind, Ticket>, Running> running_;
  test::FakeTier tier_;
};

}  // namespace kvstream::sim
