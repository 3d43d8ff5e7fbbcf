#include "server/gpu/copier.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <string>
#include <utility>

#include "server/base/clock.h"
#include "server/base/logging.h"

namespace kvstream::gpu {
namespace {

constexpr size_t kBatchFragments = 256;
constexpr uint64_t kBatchBytes = 16 * kMiB;
constexpr uint64_t kBatchesQueued = 4;
// Copies of a MiB take 27 us.
constexpr TimeNs kPoll = 10 * kMicrosecond;
// With nothing to do, a loss is noticed within this.
constexpr TimeNs kLook = kSecond;
constexpr TimeNs kGrace = 100 * kMillisecond;
constexpr unsigned long kTimerSlackNs = 1000;

}  // namespace

Copier::Copier(Device* device, DeviceStats* stats, TimeNs hung_after, Sink sink)
    : device_(device), stats_(stats), hung_after_(hung_after), sink_(std::move(sink)) {
  lanes_[0].direction = Direction::kToDevice;
  lanes_[1].direction = Direction::kToHost;
  stats_->usable.Set(1);
  thread_ = std::thread([this] { Run(); });
}

void Copier::Submit(Copy copy) {
  stats_->queued_bytes.Add(copy.bytes);
  MutexLock lock(&mu_);
  submitted_.push_back(std::move(copy));
  changed_.NotifyOne();
}

bool Copier::Stop(TimeNs deadline) {
  if (thread_.joinable()) {
    MutexLock lock(&mu_);
    stopping_ = true;
    stop_by_ = deadline;
    changed_.NotifyAll();
    // The thread gives up at the deadline, unless it is in the driver.
    const TimeNs until = deadline == kNever ? kNever : deadline + kGrace;
    while (!ended_ && changed_.WaitUntil(&mu_, until)) {
    }
    if (!ended_) return false;
  }
  if (thread_.joinable()) thread_.join();
  return Idle();
}

bool Copier::Idle() const {
  return std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.waiting.empty() && lane.running.empty(); });
}

void Copier::Run() {
  pthread_setname_np(pthread_self(), "gpu-copy");
  (void)prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);  // Else a poll takes six times as long.
  bool busy = false;
  std::vector<Copy> taken;
  while (true) {
    {
      MutexLock lock(&mu_);
      const TimeNs until = Now() + (Idle() ? kLook : kPoll);
      while (!busy && submitted_.empty() && !(stopping_ && Idle()) &&
             changed_.WaitUntil(&mu_, until)) {
      }
      if (submitted_.empty() && stopping_ && (Idle() || Now() >= stop_by_)) {
        ended_ = true;
        changed_.NotifyAll();
        return;
      }
      taken.swap(submitted_);
    }
    for (Copy& copy : taken) {
      lanes_[copy.direction == Direction::kToDevice ? 0 : 1].waiting.push_back(std::move(copy));
    }
    if (taken.empty() && Idle()) Look();
    taken.clear();
    busy = false;
    for (Lane& lane : lanes_) {
      busy = Collect(lane) || busy;
      busy = Queue(lane) || busy;
      if (lane.hung) RefuseWaiting(lane);
    }
    if (answers_.empty()) continue;
    sink_(answers_);
    answers_.clear();
  }
}

bool Copier::Queue(Lane& lane) {
  bool queued = false;
  while (!lost_ && !lane.hung && !lane.waiting.empty() &&
         lane.queued - lane.completed < kBatchesQueued) {
    const bool was_empty = lane.queued == lane.completed;
    Gather(lane);
    stats_->batches.Add();
    stats_->fragments.Add(fragments_.size());
    const absl::Status status = device_->Copy(lane.direction, fragments_);
    if (!status.ok()) Lose(status);
    if (was_empty) lane.progressed = Now();
    queued = true;
  }
  if (lost_) Lose(absl::OkStatus());
  return queued;
}

void Copier::Gather(Lane& lane) {
  fragments_.clear();
  lane.queued += 1;
  uint64_t bytes = 0;
  while (!lane.waiting.empty() && fragments_.size() < kBatchFragments && bytes < kBatchBytes) {
    Copy& copy = lane.waiting.front();
    const uint64_t begin = lane.offset;
    const uint64_t most = std::min(copy.bytes - begin, kBatchBytes - bytes);
    ranges_.clear();
    if (copy.blocks.empty()) {
      ranges_.push_back({copy.offset + begin, most});
    } else {
      copy.region->layout()->Map(copy.blocks, copy.offset + begin, most,
                                 kBatchFragments - fragments_.size(), &ranges_);
    }
    for (const DeviceRange& range : ranges_) {
      fragments_.push_back(
          {copy.host + lane.offset, copy.region->address() + range.offset, range.bytes});
      lane.offset += range.bytes;
    }
    bytes += lane.offset - begin;
    if (lane.offset < copy.bytes) continue;
    lane.running.push_back({std::move(copy), lane.queued});
    lane.waiting.pop_front();
    lane.offset = 0;
  }
}

bool Copier::Collect(Lane& lane) {
  if (lost_ || lane.queued == lane.completed) return false;
  const auto completed = device_->Completed(lane.direction);
  if (!completed.ok()) {
    Lose(completed.status());
    return true;
  }
  if (*completed == lane.completed) {
    if (!lane.hung && Now() - lane.progressed > hung_after_) SetHung(lane, true);
    return false;
  }
  lane.completed = *completed;
  lane.progressed = Now();
  if (lane.hung) SetHung(lane, false);
  while (!lane.running.empty() && lane.running.front().last_batch <= lane.completed) {
    const Copy copy = std::move(lane.running.front().copy);
    lane.running.pop_front();
    (lane.direction == Direction::kToDevice ? stats_->bytes_in : stats_->bytes_out).Add(copy.bytes);
    Answer(copy, absl::StatusCode::kOk);
  }
  return true;
}

void Copier::Look() {
  if (lost_) return;
  const auto completed = device_->Completed(Direction::kToDevice);
  if (!completed.ok()) Lose(completed.status());
}

void Copier::SetHung(Lane& lane, bool hung) {
  lane.hung = hung;
  const bool was_hung = stats_->hung.Get() != 0;
  const bool is_hung = lanes_[0].hung || lanes_[1].hung;
  if (was_hung == is_hung) return;  // The other lane hangs, which was said.
  stats_->hung.Set(is_hung ? 1 : 0);
  if (is_hung) {
    spdlog::error("a GPU hangs, its copies do not end: gpu={}", device_->uuid());
  } else {
    spdlog::warn("a GPU that hung goes on: gpu={}", device_->uuid());
  }
}

void Copier::RefuseWaiting(Lane& lane) {
  const size_t begun = lane.offset > 0 ? 1 : 0;  // The first one's batches run.
  while (lane.waiting.size() > begun) {
    Answer(lane.waiting.back(), absl::StatusCode::kUnavailable);
    lane.waiting.pop_back();
  }
}

void Copier::Lose(const absl::Status& status) {
  if (!lost_) {
    MarkLost(*device_, stats_, status);
    lost_ = true;
    stats_->hung.Set(0);
  }
  for (Lane& lane : lanes_) {
    for (const Running& running : lane.running)
      Answer(running.copy, absl::StatusCode::kUnavailable);
    for (const Copy& copy : lane.waiting) Answer(copy, absl::StatusCode::kUnavailable);
    lane.running.clear();
    lane.waiting.clear();
  }
}

void Copier::Answer(const Copy& copy, absl::StatusCode code) {
  stats_->queued_bytes.Sub(copy.bytes);
  answers_.push_back({copy.id, code});
}

}  // namespace kvstream::gpu
