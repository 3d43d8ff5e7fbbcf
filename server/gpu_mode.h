// Opens the GPUs' driver as the configuration wants it. Thread rule: any.
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/config/options.h"
#include "server/gpu/driver.h"

namespace kvstream {

// `open` is gpu::OpenDriver, but for tests. kOff: a driver without devices, and `open` is not
// called. kRequired: FAILED_PRECONDITION when there is no device, saying why.
absl::StatusOr<std::unique_ptr<gpu::Driver>> OpenDriver(
    config::GpuMode mode, absl::FunctionRef<std::unique_ptr<gpu::Driver>()> open);

}  // namespace kvstream
