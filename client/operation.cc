#include "client/operation.h"

#include <string>
#include <utility>

#include "client/status_convert.h"

namespace kvstream {
bool Operation::WaitEnded(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  return changed_.Wait(&mu_, timeout, [this] {
    mu_.AssertReaderHeld();
    return ended_;
  });
}

absl::Status Operation::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

void Operation::SetEnded(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  status_ = status;
  ended_ = true;
  changed_.NotifyAll();
}

ReadOperation::ReadOperation(const v1::ReadStep& step, ReadCallbacks callbacks)
    : Operation(step.operation_id()),
      callbacks_(std::move(callbacks)),
      results_(step.requests_size()),
      done_(step.requests_size()) {
  for (int i = 0; i < step.requests_size(); ++i) {
    results_[i].set_operation_id(step.operation_id());
    results_[i].set_request_id(step.requests(i).request_id());
  }
}

std::vector<v1::RequestDone> ReadOperation::results() const {
  absl::MutexLock lock(&mu_);
  return results_;
}

void ReadOperation::OnEvent(const v1::Event& event) {
  if (!event.has_request_done()) return;
  const v1::RequestDone& outcome = event.request_done();
  {
    absl::MutexLock lock(&mu_);
    size_t i = 0;
    while (i < results_.size() && results_[i].request_id() != outcome.request_id()) ++i;
    if (i == results_.size() || done_[i]) return;
    done_[i] = true;
    results_[i] = outcome;
  }
  if (callbacks_.on_request_done) callbacks_.on_request_done(outcome);
}

void ReadOperation::End(const absl::Status& status) {
  std::vector<v1::RequestDone> unfinished;
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < results_.size(); ++i) {
      if (done_[i]) continue;
      // Without an outcome nothing is known to be valid, whatever the daemon says of the whole.
      results_[i].set_code(status.ok() ? v1::UNAVAILABLE : ToCode(status));
      results_[i].set_message(std::string(status.message()));
      unfinished.push_back(results_[i]);
    }
  }
  if (callbacks_.on_request_done) {
    for (const v1::RequestDone& outcome : unfinished) callbacks_.on_request_done(outcome);
  }
  if (callbacks_.on_ended) callbacks_.on_ended(status);
  SetEnded(status);
}

StoreOperation::StoreOperation(const v1::Store& store)
    : Operation(store.operation_id()), chunks_(store.chunks_size()) {}

bool StoreOperation::WaitReleased(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  return changed_.Wait(&mu_, timeout, [this] {
    mu_.AssertReaderHeld();
    return released_;
  });
}

std::vector<StoreOperation::Chunk> StoreOperation::chunks() const {
  absl::MutexLock lock(&mu_);
  return chunks_;
}

void StoreOperation::OnEvent(const v1::Event& event) {
  absl::MutexLock lock(&mu_);
  if (event.has_store_released()) {
    for (const auto& result : event.store_released().results()) {
      if (result.chunk_index() >= chunks_.size()) continue;
      chunks_[result.chunk_index()] = {result.code(), result.existed()};
    }
    if (event.store_released().all_released()) {
      released_ = true;
      changed_.NotifyAll();
    }
  } else if (event.has_store_durable()) {
    for (const auto& result : event.store_durable().results()) {
      if (result.chunk_index() >= chunks_.size() || result.code() == v1::OK) continue;
      chunks_[result.chunk_index()].code = result.code();
    }
  }
}

void StoreOperation::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    // Rejected or lost: there was no StoreReleased, and the memory is free all the same.
    released_ = true;
    changed_.NotifyAll();
  }
  SetEnded(status);
}

}  // namespace kvstream
