#include "server/engine/landing.h"

#include <algorithm>
#include <string>

#include "server/base/check.h"

namespace kvstream::engine {

using gpu::Direction;

Landing::Landing(uint32_t parts, uint64_t part_bytes, Gauge* overdue)
    : part_bytes_(part_bytes), overdue_(overdue), parts_(parts) {}

Landing::~Landing() {
  for (Part& part : parts_) Free(part);
}

void Landing::Add(Direction direction, const LandingJob& job, Actions* actions) {
  KV_CHECK(!stalled());
  (direction == Direction::kToDevice ? loads_ : stores_).push_back({job, 0});
  Pump(actions);
}

void Landing::Pump(Actions* actions) {
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p].state != State::kFree) continue;
    std::deque<Waiting>* queue = NextQueue();
    if (queue == nullptr) return;
    Part& part = parts_[p];
    part.direction = queue == &loads_ ? Direction::kToDevice : Direction::kToHost;
    part.sequence = ++last_sequence_;
    Fill(p, queue);
    if (part.direction == Direction::kToHost) {
      Ask(p, actions);
      continue;
    }
    part.state = State::kFilling;
    part.copies = static_cast<uint32_t>(part.pieces.size());
    for (const Piece& piece : part.pieces) actions->CopyPiece(part.direction, p, piece);
  }
}

std::deque<Landing::Waiting>* Landing::NextQueue() {
  if (loads_.empty() && stores_.empty()) return nullptr;
  const bool load = !loads_.empty() && (stores_.empty() || loads_in_a_row_ < kLoadsInARow);
  loads_in_a_row_ = load ? loads_in_a_row_ + 1 : 0;
  return load ? &loads_ : &stores_;
}

void Landing::Fill(uint32_t index, std::deque<Waiting>* queue) {
  Part& part = parts_[index];
  part.operation = queue->front().job.operation;
  uint64_t filled = 0;
  while (!queue->empty() && filled < part_bytes_) {
    Waiting& waiting = queue->front();
    if (waiting.job.operation != part.operation) return;
    const uint64_t bytes = std::min(part_bytes_ - filled, waiting.job.bytes - waiting.offset);
    part.pieces.push_back({waiting.job.id, waiting.offset, filled, bytes});
    waiting.offset += bytes;
    filled += bytes;
    if (waiting.offset == waiting.job.bytes) queue->pop_front();
  }
}

void Landing::Ask(uint32_t index, Actions* actions) {
  Part& part = parts_[index];
  part.state = State::kWithWorker;
  actions->AskWorker(part.direction, part.operation, index, part.sequence, part.pieces);
}

void Landing::OnCopied(uint32_t index, const Piece& piece, Actions* actions) {
  Part& part = parts_[index];
  KV_CHECK(part.copies > 0);
  part.copies -= 1;
  if (part.state == State::kDraining && !part.abandoned) actions->Moved(piece.job, piece.bytes);
  if (part.copies > 0) return;
  if (part.state == State::kFilling && !part.abandoned) return Ask(index, actions);
  Free(part);
  Pump(actions);
}

absl::Status Landing::OnAcknowledged(Direction direction, uint32_t index, uint64_t sequence,
                                     Actions* actions) {
  if (index >= parts_.size() || parts_[index].state != State::kWithWorker ||
      parts_[index].sequence != sequence || parts_[index].direction != direction) {
    return absl::InvalidArgumentError("part " + std::to_string(index) + ", sequence " +
                                      std::to_string(sequence) +
                                      ": the worker was not asked for that, or has said it before");
  }
  Part& part = parts_[index];
  if (direction == Direction::kToHost && !part.abandoned) {
    part.state = State::kDraining;
    part.copies = static_cast<uint32_t>(part.pieces.size());
    for (const Piece& piece : part.pieces) actions->CopyPiece(direction, index, piece);
    return absl::OkStatus();
  }
  if (!part.abandoned) {
    for (const Piece& piece : part.pieces) actions->Moved(piece.job, piece.bytes);
  }
  Free(part);
  Pump(actions);
  return absl::OkStatus();
}

void Landing::EndOperation(OperationId operation, Actions* actions) {
  for (auto* queue : {&loads_, &stores_}) {
    std::erase_if(*queue, [&](const Waiting& w) { return w.job.operation == operation; });
  }
  for (Part& part : parts_) {
    if (part.state == State::kFree || part.operation != operation || part.abandoned) continue;
    part.abandoned = true;
    if (part.state == State::kWithWorker) overdue_->Add();
  }
  Pump(actions);
}

bool Landing::WithWorker() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.state == State::kWithWorker; });
}

bool Landing::WithWorker(uint32_t index, uint64_t sequence) const {
  return parts_[index].state == State::kWithWorker && parts_[index].sequence == sequence;
}

std::vector<OperationId> Landing::Stall(uint32_t index) {
  Part& part = parts_[index];
  KV_CHECK(part.state == State::kWithWorker && !part.stalled);
  part.stalled = true;
  stalled_parts_ += 1;
  std::vector<OperationId> waiting;
  if (!part.abandoned) waiting.push_back(part.operation);
  for (const auto* queue : {&loads_, &stores_}) {
    for (const Waiting& w : *queue) waiting.push_back(w.job.operation);
  }
  std::sort(waiting.begin(), waiting.end());
  waiting.erase(std::unique(waiting.begin(), waiting.end()), waiting.end());
  return waiting;
}

void Landing::Free(Part& part) {
  if (part.state == State::kWithWorker && part.abandoned) overdue_->Sub();
  if (part.stalled) stalled_parts_ -= 1;
  part.state = State::kFree;
  part.abandoned = false;
  part.stalled = false;
  part.pieces.clear();
}

}  // namespace kvstream::engine
