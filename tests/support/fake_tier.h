// A tier of simulators and tests: files in memory, time as an argument, faults on demand. It keeps
// the contract of tier.h (tests/tier/tier_contract_test.cc runs the same body over it), and the
// same calls at the same times give the same completions in the same order.
//
// Each direction is a pipe: requests move their bytes one after the other at the pipe's rate, then
// wait for the latency, which they do side by side. What a request sees and does to the files, and
// to its buffer, happens at its completion.
//
// Thread rule: one thread. Nothing completes inside a call; completions come out of AdvanceTo and
// Stop. The sink may call back.
// Ownership: borrows the sink and the fault plan. A read that never completes never touches its
// buffer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/tier/tier.h"
#include "tests/support/fault_plan.h"

namespace kvstream::test {

class FakeTier final : public tier::Tier {
 public:
  struct Options {
    // Only id, name and root matter.
    tier::TierOptions tier;
    // Bytes per second; 0 stands still.
    uint64_t read_rate = kGiB;
    uint64_t write_rate = kGiB;
    // Each request waits latency plus a random share of jitter.
    TimeNs latency = 100 * kMicrosecond;
    TimeNs jitter = 0;
    uint64_t seed = 1;
    // Room for files; a write that finds none fails with ENOSPC.
    uint64_t capacity_bytes = UINT64_MAX / 2;
    // Not owned; null: nothing goes wrong. A short write is a torn one: it says that it is whole.
    FaultPlan* faults = nullptr;
    // Where set, a fault that harms this file comes only if this agrees. Asked as it is accepted.
    std::function<bool(FaultPoint, const Fault&, const std::string& path)> may_harm = nullptr;
  };

  FakeTier(Options options, tier::CompletionSink* sink);

  const tier::TierOptions& options() const override { return options_.tier; }
  const tier::TierFacts& facts() const override { return facts_; }
  const tier::TierStats& stats() const override { return stats_; }
  // For tests of what is said of them.
  tier::TierFacts& facts() { return facts_; }
  tier::TierStats& stats() { return stats_; }

  void Read(std::span<const tier::ReadRequest> requests) override;
  void Write(tier::WriteRequest request) override;
  void SetAside(tier::SetAsideRequest request) override;
  void Measure(Ticket ticket) override;
  absl::AnyInvocable<absl::Status()> Recheck() const override {
    return [] { return absl::OkStatus(); };
  }
  // Of the folder that the options name, where they do.
  tier::TierRoot Root() const override;
  // Advances to `deadline`, or until nothing is left.
  [[nodiscard]] bool Stop(TimeNs deadline) override;

  // When the next completion comes; kNever if none will.
  TimeNs NextEventAt() const;
  // Lets time pass, completing what is due. REQUIRES: now is not before the last one.
  void AdvanceTo(TimeNs now);
  TimeNs now() const { return now_; }

  // Requests that would never end fail with EIO.
  void EndHung();
  // The machine dies: no request gets a completion any more, and of the writes that were under way
  // some are published. What is published stays.
  void Crash();
  // Requests about files that have no completion yet.
  size_t running() const {
    return static_cast<size_t>(std::ranges::count_if(running_, [](const auto& job) {
      return job.second.kind != tier::Completion::Kind::kMeasure;
    }));
  }

  // From now on; also for requests that are under way.
  void SetReadRate(uint64_t bytes_per_second) { reads_.SetRate(bytes_per_second, now_); }
  void SetWriteRate(uint64_t bytes_per_second) { writes_.SetRate(bytes_per_second, now_); }

  // The published files, for tests to look at and to damage.
  std::map<std::string, std::vector<std::byte>>& files() { return files_; }

 private:
  struct Job {
    std::function<tier::Completion(const Fault&)> finish;
    Fault fault;
    tier::Completion::Kind kind = tier::Completion::Kind::kRead;
  };

  // Moves the bytes of one request after the other.
  class Pipe {
   public:
    explicit Pipe(uint64_t rate) : rate_(rate) {}

    void SetRate(uint64_t rate, TimeNs now);
    void Push(uint64_t bytes, uint64_t job, TimeNs now);
    // When the first request has moved its bytes; kNever if none will.
    TimeNs FrontDoneAt() const;
    // Takes the first request off. REQUIRES: `now` is FrontDoneAt().
    uint64_t Pop(TimeNs now);
    void Clear() { items_.clear(); }

   private:
    struct Item {
      uint64_t job;
      // Byte-nanoseconds per second left to move, so that a rate change loses nothing.
      unsigned __int128 work;
    };

    uint64_t rate_;
    // When the front's work was last brought up to date.
    TimeNs since_ = 0;
    std::deque<Item> items_;
  };

  Fault NextFault(FaultPoint point, const std::string& path, uint64_t bytes);
  void Accept(Pipe* pipe, uint64_t bytes, Job job);
  TimeNs Latency();
  void Complete(uint64_t job, const Fault* instead);
  tier::Completion FinishRead(const tier::ReadRequest& request, const Fault& fault);
  tier::Completion FinishWrite(const tier::WriteRequest& request, const Fault& fault);
  tier::Completion FinishSetAside(tier::SetAsideRequest& request);
  tier::Completion Begin(tier::Completion::Kind kind, Ticket ticket) const;
  uint64_t UsedBytes() const;

  Options options_;
  tier::CompletionSink& sink_;
  tier::TierFacts facts_;
  tier::TierStats stats_;
  std::mt19937_64 random_;

  TimeNs now_ = 0;
  Pipe reads_;
  Pipe writes_;
  uint64_t jobs_ = 0;
  std::map<uint64_t, Job> running_;
  // Jobs that wait for their latency only, by the time of their completion.
  std::map<std::pair<TimeNs, uint64_t>, uint64_t> due_;
  std::map<std::string, std::vector<std::byte>> files_;
};

}  // namespace kvstream::test
