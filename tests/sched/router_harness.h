// A router whose every command a test can look at, and whose every read and copy a test answers
// by hand. Two tiers unless said otherwise; segments of 1 MiB.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gtest/gtest.h"
#include "server/sched/router.h"
#include "tests/support/router_peer.h"
#include "tests/support/sim_batches.h"

namespace kvstream::sched {

class RouterTest : public ::testing::Test {
 protected:
  static constexpr auto kOk = absl::StatusCode::kOk;
  static constexpr auto kCancelled = absl::StatusCode::kCancelled;
  static constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  static constexpr auto kDeadlineExceeded = absl::StatusCode::kDeadlineExceeded;
  static constexpr auto kNotFound = absl::StatusCode::kNotFound;
  static constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
  static constexpr uint64_t kSegment = kMiB;
  static constexpr TierId kFast{0};
  static constexpr TierId kSlow{1};

  static RouterOptions Options() {
    RouterOptions options;
    options.lanes = {LaneOptions{4 * kSegment, 2 * kSegment},
                     LaneOptions{4 * kSegment, 2 * kSegment}};
    options.hedge_after = 100 * kMillisecond;
    return options;
  }

  void SetUp() override { Start(Options(), 64 * kSegment); }

  void Start(const RouterOptions& options, uint64_t pool_bytes) {
    router_.reset();
    slots_.emplace(pool_bytes, pool_bytes);
    router_.emplace(options, &*slots_);
  }

  static ChunkShape Shape(uint32_t segments) { return ChunkShape{segments * kSegment, kSegment}; }

  // Takes what the router commanded. Call after each event.
  void Collect() {
    std::vector<Command> commands;
    router_->TakeCommands(&commands);
    for (Command& command : commands) {
      if (const auto* copy = std::get_if<CopySegment>(&command)) {
        auto& copying = copying_[copy->ticket];
        copying.insert(copying.end(), copy->items.begin(), copy->items.end());
      }
      log_.push_back(std::move(command));
    }
    EXPECT_EQ(RouterPeer::Check(*router_, kSegment, now_), "");
  }
  // All commands of a kind so far, since the last Forget.
  template <typename T>
  std::vector<T> All() const {
    std::vector<T> all;
    for (const Command& command : log_) {
      if (const T* one = std::get_if<T>(&command)) all.push_back(*one);
    }
    return all;
  }
  void Forget() { log_.clear(); }

  void Admit(BatchSpec spec) {
    router_->Admit(std::move(spec), now_);
    Collect();
  }
  void Cancel(uint64_t batch) {
    router_->Fail(OperationId{batch}, absl::StatusCode::kCancelled, now_);
    Collect();
  }
  void EndRead(const ReadSegment& read, absl::StatusCode code = absl::StatusCode::kOk) {
    router_->OnRead(read.ticket, code, now_);
    Collect();
  }
  // All that are running.
  void EndCopy(Ticket ticket, absl::StatusCode code = absl::StatusCode::kOk) {
    const std::vector<ItemRef> items = std::exchange(copying_[ticket], {});
    router_->OnCopy(ticket, items, code, now_);
    Collect();
  }
  // Of one batch.
  void EndCopyFor(Ticket ticket, uint64_t batch) {
    std::vector<ItemRef> ended;
    std::erase_if(copying_[ticket], [&](const ItemRef& ref) {
      if (ref.batch != OperationId{batch}) return false;
      ended.push_back(ref);
      return true;
    });
    router_->OnCopy(ticket, ended, absl::StatusCode::kOk, now_);
    Collect();
  }
  void EndReadAndCopy(const ReadSegment& read) {
    EndRead(read);
    EndCopy(read.ticket);
  }
  void EndStagedCopy(const ItemRef& item, absl::StatusCode code = absl::StatusCode::kOk) {
    router_->OnStagedCopy(item, code, now_);
    Collect();
  }
  void SetInService(TierId tier, bool in_service) {
    router_->SetTierInService(tier, in_service, now_);
    Collect();
  }
  void Pass(TimeNs time) {
    now_ += time;
    router_->Tick(now_);
    Collect();
  }

  // The outcomes of a request; empty until it is done.
  std::vector<absl::StatusCode> Outcome(uint64_t batch, uint32_t request = 0) const {
    for (const RequestDone& done : All<RequestDone>()) {
      if (done.batch == OperationId{batch} && done.request == request) return done.codes;
    }
    return {};
  }
  std::vector<ReadSegment> ReadsOf(TierId tier) const {
    std::vector<ReadSegment> reads;
    for (const ReadSegment& read : All<ReadSegment>()) {
      if (read.tier == tier) reads.push_back(read);
    }
    return reads;
  }

  std::optional<SlotAllocator> slots_;
  std::optional<Router> router_;
  TimeNs now_ = kSecond;

 private:
  std::vector<Command> log_;
  absl::flat_hash_map<Ticket, std::vector<ItemRef>> copying_;
};

}  // namespace kvstream::sched
