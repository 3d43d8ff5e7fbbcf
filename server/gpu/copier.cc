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
constexpr unsigned long kTimerSlackNs = 1000;

}  // namespace

Copier::Copier(Device* device, DeviceStats* stats, Sink sink)
    : device_(device), stats_(stats), sink_(std::move(sink)) {
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

void Copier::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyOne();
  }
  thread_.join();
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
      const TimeNs until = Idle() ? kNever : Now() + kPoll;
      while (!busy && submitted_.empty() && !(stopping_ && Idle()) &&
             changed_.WaitUntil(&mu_, until)) {
      }
      if (submitted_.empty() && stopping_ && Idle()) return;
      taken.swap(submitted_);
    }
    for (Copy& copy : taken) {
      lanes_[copy.direction == Direction::kToDevice ? 0 : 1].waiting.push_back(std::move(copy));
    }
    taken.clear();
    busy = false;
    for (Lane& lane : lanes_) {
      busy = Collect(lane) || busy;
      busy = Queue(lane) || busy;
    }
    if (answers_.empty()) continue;
    sink_(answers_);
    answers_.clear();
  }
}

bool Copier::Queue(Lane& lane) {
  bool queued = false;
  while (!lost_ && !lane.waiting.empty() && lane.queued - lane.completed < kBatchesQueued) {
    Gather(lane);
    stats_->batches.Add();
    stats_->fragments.Add(fragments_.size());
    const absl::Status status = device_->Copy(lane.direction, fragments_);
    if (!status.ok()) Lose(status);
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
  if (*completed == lane.completed) return false;
  lane.completed = *completed;
  while (!lane.running.empty() && lane.running.front().last_batch <= lane.completed) {
    const Copy copy = std::move(lane.running.front().copy);
    lane.running.pop_front();
    (lane.direction == Direction::kToDevice ? stats_->bytes_in : stats_->bytes_out).Add(copy.bytes);
    Answer(copy, absl::StatusCode::kOk);
  }
  return true;
}

void Copier::Lose(const absl::Status& status) {
  if (!lost_) {
    spdlog::error("a GPU is lost, restart the daemon: gpu={} cause={}", device_->uuid(),
                  std::string(status.message()));
    lost_ = true;
    stats_->usable.Set(0);
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
