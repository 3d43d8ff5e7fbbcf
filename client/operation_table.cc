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

void AfterCopies(LandingHandler* landing, uint64_t id, bool ended,
                 absl::AnyInvocable<void()> then) {
  if (landing == nullptr) return then();
  landing->AfterCopies(id, ended, std::move(then));
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

void OperationTable::SetLandingHandler(std::shared_ptr<LandingHandler> handler) {
  absl::MutexLock lock(&mu_);
  landing_ = std::move(handler);
}

std::shared_ptr<LandingHandler> OperationTable::landing_handler() const {
  absl::MutexLock lock(&mu_);
  return landing_;
}

void OperationTable::Dispatch(const v1::Event& event) {
  std::shared_ptr<LandingHandler> landing;
  std::shared_ptr<Operation> operation;
  const uint64_t id = OperationOf(event);
  {
    absl::MutexLock lock(&mu_);
    landing = landing_;
    const auto found = operations_.find(id);
    if (found != operations_.end()) {
      operation = found->second;
      if (event.has_quiesced()) operations_.erase(found);
    }
  }
  if (landing != nullptr && event.has_landed()) return landing->OnLanded(event.landed());
  if (landing != nullptr && event.has_gather()) return landing->OnGather(event.gather());
  if (operation == nullptr) return;
  if (event.has_quiesced()) {
    const absl::Status status =
        FromCode(event.quiesced().code(), "run operation", event.quiesced().message());
    AfterCopies(landing.get(), id, true, [operation, status] { operation->End(status); });
  } else if (landing != nullptr) {
    landing->AfterCopies(id, false, [operation, event] { operation->OnEvent(event); });
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
  std::shared_ptr<LandingHandler> landing;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    this->*half = true;
    if (session_status_.ok()) session_status_ = cause;
    if (!stream_ended_ || !handoff_ended_) return;
    left.swap(operations_);
    landing = landing_;
    status = absl::UnavailableError(session_status_.message());
  }
  for (auto& [id, operation] : left) {
    AfterCopies(landing.get(), id, true,
                [operation = std::move(operation), status] { operation->End(status); });
  }
}

void OperationTable::SetCause(const absl::Status& cause) {
  absl::MutexLock lock(&mu_);
  if (session_status_.ok()) session_status_ = cause;
}

absl::Status OperationTable::session_status() const {
  absl::MutexLock lock(&mu_);
  return session_status_;
}

}  // namespace kvstream
