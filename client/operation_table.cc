#include "client/operation_table.h"

#include <utility>

#include "client/status_convert.h"

namespace kvstream {
namespace {

// 0 for an event of no operation.
uint64_t OperationOf(const v1::Event& event) {
  switch (event.event_case()) {
    case v1::Event::kRequestDone:
      return event.request_done().operation_id();
    case v1::Event::kStoreReleased:
      return event.store_released().operation_id();
    case v1::Event::kStoreDurable:
      return event.store_durable().operation_id();
    case v1::Event::kQuiesced:
      return event.quiesced().operation_id();
    default:
      return 0;
  }
}

}  // namespace

absl::Status OperationTable::Add(std::shared_ptr<Operation> operation) {
  absl::MutexLock lock(&mu_);
  if (!session_status_.ok()) return absl::UnavailableError(session_status_.message());
  const uint64_t id = operation->id();
  operations_[id] = std::move(operation);
  return absl::OkStatus();
}

bool OperationTable::Remove(uint64_t id) {
  absl::MutexLock lock(&mu_);
  return operations_.erase(id) > 0;
}

void OperationTable::Dispatch(const v1::Event& event) {
  std::shared_ptr<Operation> operation;
  {
    absl::MutexLock lock(&mu_);
    const auto found = operations_.find(OperationOf(event));
    if (found == operations_.end()) return;
    operation = found->second;
    if (event.has_quiesced()) operations_.erase(found);
  }
  if (event.has_quiesced()) {
    operation->End(FromCode(event.quiesced().code(), "run operation", event.quiesced().message()));
  } else {
    operation->OnEvent(event);
  }
}

void OperationTable::StreamEnded(const absl::Status& cause) {
  EndHalf(&OperationTable::stream_ended_, cause);
}

void OperationTable::HandoffEnded() {
  EndHalf(&OperationTable::handoff_ended_,
          absl::UnavailableError("use session: the daemon closed the handoff connection"));
}

void OperationTable::EndHalf(bool OperationTable::*half, const absl::Status& cause) {
  absl::flat_hash_map<uint64_t, std::shared_ptr<Operation>> left;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    this->*half = true;
    if (session_status_.ok()) session_status_ = cause;
    if (!stream_ended_ || !handoff_ended_) return;
    left.swap(operations_);
    status = absl::UnavailableError(session_status_.message());
  }
  for (const auto& [id, operation] : left) operation->End(status);
}

absl::Status OperationTable::session_status() const {
  absl::MutexLock lock(&mu_);
  return session_status_;
}

}  // namespace kvstream
