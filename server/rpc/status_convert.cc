#include "server/rpc/status_convert.h"

#include <string>

namespace kvstream::rpc {

v1::Code ToCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return v1::OK;
    case absl::StatusCode::kNotFound:
      return v1::NOT_FOUND;
    case absl::StatusCode::kDataLoss:
      return v1::DATA_LOSS;
    case absl::StatusCode::kResourceExhausted:
      return v1::RESOURCE_EXHAUSTED;
    case absl::StatusCode::kDeadlineExceeded:
      return v1::DEADLINE_EXCEEDED;
    case absl::StatusCode::kCancelled:
      return v1::CANCELLED;
    case absl::StatusCode::kFailedPrecondition:
      return v1::FAILED_PRECONDITION;
    case absl::StatusCode::kInvalidArgument:
      return v1::INVALID_ARGUMENT;
    case absl::StatusCode::kPermissionDenied:
      return v1::PERMISSION_DENIED;
    case absl::StatusCode::kUnimplemented:
      return v1::UNIMPLEMENTED;
    default:
      return v1::UNAVAILABLE;
  }
}

namespace {

grpc::StatusCode ToGrpcCode(v1::Code code) {
  switch (code) {
    case v1::OK:
      return grpc::StatusCode::OK;
    case v1::NOT_FOUND:
      return grpc::StatusCode::NOT_FOUND;
    case v1::DATA_LOSS:
      return grpc::StatusCode::DATA_LOSS;
    case v1::RESOURCE_EXHAUSTED:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case v1::DEADLINE_EXCEEDED:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case v1::CANCELLED:
      return grpc::StatusCode::CANCELLED;
    case v1::FAILED_PRECONDITION:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case v1::INVALID_ARGUMENT:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case v1::PERMISSION_DENIED:
      return grpc::StatusCode::PERMISSION_DENIED;
    case v1::UNIMPLEMENTED:
      return grpc::StatusCode::UNIMPLEMENTED;
    default:
      return grpc::StatusCode::UNAVAILABLE;
  }
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(ToGrpcCode(ToCode(status.code())), std::string(status.message()));
}

}  // namespace kvstream::rpc
