#include "server/pinning.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/base/clock.h"
#include "server/base/logging.h"

namespace kvstream {
namespace {

constexpr TimeNs kBetweenLines = 5 * kSecond;

void LogProgress(const char* what, uint64_t pinned, uint64_t of, TimeNs took) {
  spdlog::info("{}: pinned_bytes={} of={} seconds={:.1f}", what, pinned, of,
               static_cast<double>(took) / kSecond);
}

// The same share for reads alone of a pool of `bytes`.
uint64_t ReservedOf(const config::Options& options, uint64_t bytes) {
  return config::ReservedBytes(
      bytes, (options.pool_reserved_bytes * 100 + options.pool_bytes / 2) / options.pool_bytes);
}

}  // namespace

absl::Status Pinning::Pin(std::span<std::byte> memory, uint64_t slice_bytes) {
  if (driver_->devices().empty()) return absl::OkStatus();
  const TimeNs begun = Now();
  TimeNs said = begun;
  while (bytes_ < memory.size()) {
    const auto slice =
        memory.subspan(bytes_, std::min<uint64_t>(slice_bytes, memory.size() - bytes_));
    if (const absl::Status status = driver_->Pin(slice); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("pin MiB ", bytes_ / kMiB, " .. ",
                                                      (bytes_ + slice.size()) / kMiB,
                                                      " of the staging pool: ", status.message()));
    }
    slices_.push_back(slice);
    bytes_ += slice.size();
    if (Now() - said < kBetweenLines || bytes_ == memory.size()) continue;
    said = Now();
    LogProgress("pinning the staging pool", bytes_, memory.size(), said - begun);
  }
  LogProgress("staging pool pinned", bytes_, memory.size(), Now() - begun);
  return absl::OkStatus();
}

void Pinning::Unpin() {
  for (const std::span<std::byte> slice : slices_) driver_->Unpin(slice);
  slices_.clear();
  bytes_ = 0;
}

absl::StatusOr<config::Options> WithPoolPinned(config::Options options, uint64_t pinned_bytes,
                                               const absl::Status& cause) {
  const uint64_t reserved = ReservedOf(options, pinned_bytes);
  const bool enough =
      pinned_bytes >= options.pool_bytes / 2 && 2 * options.segment_bytes_max <= reserved;
  if (options.pin == config::PinPolicy::kExit || !enough) {
    return absl::ResourceExhaustedError(absl::StrCat(
        cause.message(), "; ", pinned_bytes / kMiB, " of ", options.pool_bytes / kMiB,
        " MiB are pinned, ",
        enough ? "which pool.pin: SHRINK would do with" : "too little even for pool.pin: SHRINK",
        ". It takes a smaller pool.mib, more memory, or gpu.mode: OFF"));
  }
  options.pool_bytes = pinned_bytes;
  options.pool_reserved_bytes = reserved;
  return options;
}

std::string PoolIsSmaller(uint64_t configured_bytes, uint64_t bytes, const absl::Status& cause) {
  return absl::StrCat("the staging pool has ", bytes / kMiB, " of ", configured_bytes / kMiB,
                      " MiB, since the rest could not be pinned for the GPUs: ", cause.message());
}

}  // namespace kvstream
