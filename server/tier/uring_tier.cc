#include "server/tier/uring_tier.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <string>
#include <utility>

#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/tier/lane_parts.h"
#include "server/tier/paths.h"
#include "server/tier/probe.h"

namespace kvstream::tier {
namespace {

absl::Status CheckOptions(const TierOptions& o) {
  if (!std::has_single_bit(o.io_bytes) || o.io_bytes < kBlockBytes || o.io_bytes > kGiB) {
    return absl::InvalidArgumentError("open tier " + o.name + ": io_bytes " +
                                      std::to_string(o.io_bytes) +
                                      " is not a power of two from 4 KiB to 1 GiB");
  }
  if (o.queue_depth == 0 || o.open_files_max == 0) {
    return absl::InvalidArgumentError("open tier " + o.name +
                                      ": queue_depth and open_files_max must be at least 1");
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> OpenRoot(const std::string& path) {
  UniqueFd root(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return ErrnoStatus(errno, "open tier root", path);
  if (const int error = MakeFolders(root.get(), "v1/"); error != 0) {
    return ErrnoStatus(error, "make folder", path + "/v1");
  }
  return root;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tier>> UringTier::Open(const TierOptions& options,
                                                      std::span<std::byte> memory,
                                                      CompletionSink* sink, ResultHook hook) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return valid;
  auto root = OpenRoot(options.root);
  if (!root.ok()) return root.status();
  const auto probed = Probe(options, root->get());
  if (!probed.ok()) return probed.status();

  auto body = std::make_unique<Body>(options, *std::move(root));
  const LaneParts parts{.options = &body->options,
                        .root_fd = body->root.get(),
                        .direct = probed->direct,
                        .stats = &body->stats,
                        .sink = sink,
                        .memory = memory,
                        .hook = std::move(hook)};
  body->reader = std::make_unique<ReadLane>(parts);
  absl::Status started = body->reader->Start();
  if (!started.ok()) return started;
  body->writer = std::make_unique<WriteLane>(parts);
  started = body->writer->Start();
  if (!started.ok()) {
    // Nothing was asked of the reader, so it ends at once.
    (void)body->reader->Stop(kNever);
    return started;
  }
  body->housekeeping = std::make_unique<Housekeeping>(
      parts, [reader = body->reader.get()](const std::string& path) { reader->Forget(path); });
  body->facts = {.io_engine = "io_uring",
                 .direct = probed->direct,
                 .alignment = probed->alignment,
                 .registered_buffers =
                     body->reader->registered_buffers() && body->writer->registered_buffers()};
  return std::unique_ptr<Tier>(new UringTier(std::move(body)));
}

UringTier::~UringTier() {
  if (!stopped_) (void)Stop(Now());
  if (abandoned_) (void)body_.release();
}

void UringTier::Read(std::span<const ReadRequest> requests) { body_->reader->Read(requests); }

void UringTier::Write(WriteRequest request) { body_->writer->Write(std::move(request)); }

void UringTier::SetAside(SetAsideRequest request) {
  body_->housekeeping->SetAside(std::move(request));
}

bool UringTier::Stop(TimeNs deadline) {
  stopped_ = true;
  // Housekeeping first: it speaks to the reader.
  const bool kept = body_->housekeeping->Stop(deadline);
  const bool written = body_->writer->Stop(deadline);
  const bool read = body_->reader->Stop(deadline);
  abandoned_ = !(kept && written && read);
  return !abandoned_;
}

absl::StatusOr<std::unique_ptr<Tier>> OpenUringTier(const TierOptions& options,
                                                    std::span<std::byte> memory,
                                                    CompletionSink* sink) {
  return UringTier::Open(options, memory, sink, {});
}

}  // namespace kvstream::tier
