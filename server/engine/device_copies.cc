#include "server/engine/device_copies.h"

#include <utility>

#include "server/base/check.h"
#include "server/base/logging.h"

namespace kvstream::engine {

using gpu::Direction;

// What a landing buffer of a session decides, carried out.
class DeviceCopies::LandingActions final : public Landing::Actions {
 public:
  LandingActions(DeviceCopies* copies, SessionId session, uint64_t region, gpu::RegionRef memory,
                 TimeNs now)
      : copies_(*copies),
        session_(session),
        region_(region),
        memory_(std::move(memory)),
        now_(now) {}

  void CopyPiece(Direction direction, uint32_t part, const Landing::Piece& piece) override {
    const DeviceCopy copy{piece.job, region_, part, piece, session_};
    gpu::Copy request;
    request.direction = direction;
    request.region = memory_;
    request.offset = part * memory_->part_bytes() + piece.part_offset;
    request.bytes = piece.bytes;
    request.host = copies_.jobs_.at(piece.job).job.host + piece.job_offset;
    copies_.CopyToGpu(piece.job, copy, std::move(request));
  }

  void AskWorker(Direction direction, OperationId, uint32_t part, uint64_t sequence,
                 const std::vector<Landing::Piece>& pieces) override {
    PartMoved moved{direction == Direction::kToHost, 0, region_, part, sequence, {}};
    for (const Landing::Piece& piece : pieces) {
      const DeviceJob& job = copies_.jobs_.at(piece.job).job;
      moved.client_op = job.client_op;
      moved.pieces.push_back({job.request_index, job.chunk_index, job.offset + piece.job_offset,
                              piece.part_offset, piece.bytes});
    }
    copies_.parts_.sessions->Send(session_, std::move(moved));
    copies_.due_.push_back({now_ + copies_.parts_.landing_ack, session_, region_, part, sequence});
  }

  void Moved(uint64_t job, uint64_t bytes) override { copies_.Moved(job, bytes); }

 private:
  DeviceCopies& copies_;
  const SessionId session_;
  const uint64_t region_;
  const gpu::RegionRef memory_;
  const TimeNs now_;
};

Landing* DeviceCopies::FindLanding(SessionId session, uint64_t region) {
  Session* found = parts_.sessions->Find(session);
  if (found == nullptr) return nullptr;
  const auto it = found->regions.find(region);
  return it == found->regions.end() ? nullptr : it->second.parts.get();
}

void DeviceCopies::Submit(const DeviceJob& job, TimeNs now) {
  const uint64_t id = next_job_++;
  jobs_[id] = Running{job, job.bytes, 0, absl::StatusCode::kOk};
  jobs_of_.emplace(job.operation, id);
  const Place& place = *job.place;
  if (const auto code = WhyNot(job.session, place); code != absl::StatusCode::kOk) {
    return Fail(id, code);
  }
  if (place.landing == 0) {
    gpu::Copy request;
    request.direction = job.direction;
    request.region = place.region;
    request.blocks = place.blocks;
    request.offset = job.offset;
    request.bytes = job.bytes;
    request.host = job.host;
    return CopyToGpu(id, DeviceCopy{id, 0, 0, {}, job.session}, std::move(request));
  }
  const WorkerRegion& region = parts_.sessions->Find(job.session)->regions.at(place.landing);
  LandingActions actions(this, job.session, place.landing, region.memory, now);
  region.parts->Add(job.direction, {id, job.operation, job.bytes}, &actions);
}

absl::StatusCode DeviceCopies::WhyNot(SessionId session, const Place& place) const {
  if (place.region == nullptr) return absl::StatusCode::kOk;
  const gpu::DeviceStats& stats = parts_.gpus->stats(place.region->device());
  if (stats.usable.Get() == 0 || stats.hung.Get() != 0) return absl::StatusCode::kUnavailable;
  if (place.landing == 0) return absl::StatusCode::kOk;
  const Session* owner = parts_.sessions->Find(session);
  return owner->regions.at(place.landing).parts->stalled() ? absl::StatusCode::kDeadlineExceeded
                                                           : absl::StatusCode::kOk;
}

void DeviceCopies::EndAllOn(uint32_t device, TimeNs now) {
  std::vector<std::pair<SessionId, OperationId>> ended;
  for (const auto& [id, running] : jobs_) {
    const Place& place = *running.job.place;
    if (place.landing != 0 && place.region->device() == device &&
        running.code == absl::StatusCode::kOk) {
      ended.emplace_back(running.job.session, running.job.operation);
    }
  }
  for (const auto& [session, operation] : ended) {
    EndOperation(session, operation, absl::StatusCode::kUnavailable, now);
  }
}

void DeviceCopies::CopyToGpu(uint64_t job, const DeviceCopy& copy, gpu::Copy request) {
  jobs_.at(job).copies += 1;
  request.id = next_copy_++;
  copies_[request.id] = copy;
  parts_.gpus->Submit(std::move(request));
}

void DeviceCopies::OnCopied(const gpu::CopyDone& done, TimeNs now) {
  const auto it = copies_.find(done.id);
  KV_CHECK(it != copies_.end());
  const DeviceCopy copy = it->second;
  copies_.erase(it);
  Running& running = jobs_.at(copy.job);
  running.copies -= 1;
  if (done.code != absl::StatusCode::kOk && running.code == absl::StatusCode::kOk) {
    // Nothing of its operation can be had any more.
    EndOperation(copy.session, running.job.operation, done.code, now);
  } else if (copy.region == 0) {
    running.left = 0;
  }
  if (copy.region != 0) {
    const auto& region = parts_.sessions->Find(copy.session)->regions.at(copy.region);
    LandingActions actions(this, copy.session, copy.region, region.memory, now);
    region.parts->OnCopied(copy.part, copy.piece, &actions);
  }
  MaybeAnswer(copy.job);
}

absl::Status DeviceCopies::OnAcknowledged(Session& session, const PartAcknowledged& acknowledged,
                                          TimeNs now) {
  const auto region = session.regions.find(acknowledged.region_id);
  if (region == session.regions.end() || region->second.parts == nullptr) {
    return absl::NotFoundError("region_id " + std::to_string(acknowledged.region_id) +
                               ": the session has no such landing buffer");
  }
  LandingActions actions(this, session.id, acknowledged.region_id, region->second.memory, now);
  return region->second.parts->OnAcknowledged(
      acknowledged.gathered ? Direction::kToHost : Direction::kToDevice, acknowledged.part,
      acknowledged.sequence, &actions);
}

void DeviceCopies::Moved(uint64_t job, uint64_t bytes) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  it->second.left -= bytes;
  MaybeAnswer(job);
}

void DeviceCopies::Fail(uint64_t job, absl::StatusCode code) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  if (it->second.code == absl::StatusCode::kOk) it->second.code = code;
  MaybeAnswer(job);
}

void DeviceCopies::MaybeAnswer(uint64_t job) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  const Running& running = it->second;
  if (running.copies > 0 || (running.left > 0 && running.code == absl::StatusCode::kOk)) return;
  results_.push_back(
      {running.job.kind, running.job.id, running.job.part, running.job.operation, running.code});
  jobs_of_.erase({running.job.operation, job});
  jobs_.erase(it);
}

void DeviceCopies::EndOperation(SessionId session_id, OperationId operation, absl::StatusCode code,
                                TimeNs now) {
  std::vector<uint64_t> ended;
  for (auto job = jobs_of_.lower_bound({operation, 0});
       job != jobs_of_.end() && job->first == operation; ++job) {
    ended.push_back(job->second);
  }
  if (ended.empty()) return;
  Session* session = parts_.sessions->Find(session_id);
  for (auto& [region_id, region] : session->regions) {
    if (region.parts == nullptr) continue;
    LandingActions actions(this, session_id, region_id, region.memory, now);
    region.parts->EndOperation(operation, &actions);
  }
  for (const uint64_t id : ended) Fail(id, code);
}

void DeviceCopies::Tick(TimeNs now) {
  for (uint32_t device = 0; device < parts_.gpus->size(); ++device) {
    const bool hangs = parts_.gpus->stats(device).hung.Get() != 0;
    if (hangs && !hung_.contains(device)) EndAllOn(device, now);  // No part of them will be free.
    hangs ? (void)hung_.insert(device) : (void)hung_.erase(device);
  }
  while (!due_.empty()) {
    const Due due = due_.front();
    Landing* landing = FindLanding(due.session, due.region);
    const bool waits = landing != nullptr && landing->WithWorker(due.part, due.sequence);
    if (waits && due.deadline > now) return;
    due_.pop_front();
    if (!waits) continue;
    parts_.stats->landing_timeouts.Add();
    if (!landing->stalled()) {
      spdlog::warn("a worker does not answer for its landing buffer: client={} part={}",
                   parts_.sessions->Find(due.session)->client_name, due.part);
    }
    for (const OperationId operation : landing->Stall(due.part)) {
      EndOperation(due.session, operation, absl::StatusCode::kDeadlineExceeded, now);
    }
  }
}

void DeviceCopies::TakeResults(std::vector<DeviceResult>* results) {
  results->clear();
  results->swap(results_);
}

}  // namespace kvstream::engine
