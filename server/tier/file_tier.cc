#include "server/tier/file_tier.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/base/run_within.h"
#include "server/tier/lane_parts.h"
#include "server/tier/mount.h"
#include "server/tier/paths.h"
#include "server/tier/probe.h"
#include "server/tier/recheck.h"

namespace kvstream::tier {
namespace {

constexpr uint32_t kIoThreadsMax = 256;

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
  if (o.io_threads == 0 || o.io_threads > kIoThreadsMax) {
    return absl::InvalidArgumentError("open tier " + o.name + ": io_threads " +
                                      std::to_string(o.io_threads) + " is not in 1 .. " +
                                      std::to_string(kIoThreadsMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> OpenRoot(const std::string& path, const std::string& mount_point) {
  UniqueFd root(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return ErrnoStatus(errno, "open tier root", path);
  if (!mount_point.empty()) {
    struct stat here {};
    if (fstat(root.get(), &here) != 0) return ErrnoStatus(errno, "stat", path);
    if (auto s = CheckMounted(mount_point, here.st_dev, path); !s.ok()) return s;
  }
  if (const int error = MakeFolders(root.get(), "v1/"); error != 0) {
    return ErrnoStatus(error, "make folder", path + "/v1");
  }
  return root;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tier>> FileTier::Open(const TierOptions& options,
                                                     std::span<std::byte> memory,
                                                     CompletionSink* sink, QueueWrapper wrap) {
  const absl::Status valid = CheckOptions(options);
  if (!valid.ok()) return valid;
  auto root =
      RunWithin(kFirstTouchPatience, [path = options.root, mount_point = options.mount_point] {
        return OpenRoot(path, mount_point);
      });
  if (!root.has_value()) {
    return absl::DeadlineExceededError("open tier root " + options.root +
                                       ": the file system does not answer");
  }
  if (!root->ok()) return root->status();

  auto body = std::make_unique<Body>(options, **std::move(root));
  const LaneParts parts{.options = &body->options,
                        .root_fd = body->root.get(),
                        .stats = &body->stats,
                        .sink = sink,
                        .memory = options.register_memory ? memory : std::span<std::byte>(),
                        .wrap = std::move(wrap)};
  const bool threads = options.io_engine == IoEngine::kThreads;
  absl::Status refused;
  absl::Status started =
      StartWith(threads ? IoEngine::kThreads : IoEngine::kUring, parts, body.get(), &refused);
  if (!refused.ok() && options.io_engine == IoEngine::kAuto) {
    body->facts.engine_reason = std::string(refused.message());
    spdlog::warn("io_uring refused, using threads, which cost more CPU: tier={} cause={}",
                 options.name, body->facts.engine_reason);
    started = StartWith(IoEngine::kThreads, parts, body.get(), &refused);
  }
  if (!started.ok()) return started;
  LaneParts kept = parts;
  kept.direct = body->facts.direct;
  try {
    body->housekeeping = std::make_unique<Housekeeping>(
        kept, [reader = body->reader.get()](const std::string& path) { reader->Forget(path); });
  } catch (const std::system_error& e) {
    // Nothing was asked of the lanes, so they end at once.
    (void)body->writer->Stop(kNever);
    (void)body->reader->Stop(kNever);
    return absl::ResourceExhaustedError("start the housekeeping thread of tier " + options.name +
                                        ": " + e.what());
  }
  return std::unique_ptr<Tier>(new FileTier(std::move(body)));
}

absl::Status FileTier::StartWith(IoEngine engine, const LaneParts& parts, Body* body,
                                 absl::Status* refused) {
  const auto probed = Probe(body->options, engine, body->root.get(), refused);
  if (!probed.ok()) return probed.status();
  LaneParts mine = parts;
  mine.engine = engine;
  mine.direct = probed->direct;
  *refused = StartLanes(mine, body);
  if (!refused->ok()) return *refused;
  body->facts.io_engine = engine == IoEngine::kUring ? "io_uring" : "threads";
  body->facts.direct = probed->direct;
  body->facts.buffered_reason = probed->buffered_reason;
  body->facts.alignment = probed->alignment;
  body->facts.registered_buffers =
      body->reader->registered_buffers() && body->writer->registered_buffers();
  const int error = body->reader->registration_error() != 0 ? body->reader->registration_error()
                                                            : body->writer->registration_error();
  body->facts.registration_error = error;
  if (error != 0) {
    spdlog::warn("memory not registered with io_uring, reads cost more CPU: tier={} errno={} ({})",
                 body->options.name, error, std::strerror(error));
  }
  return absl::OkStatus();
}

absl::Status FileTier::StartLanes(const LaneParts& parts, Body* body) {
  body->reader = std::make_unique<ReadLane>(parts);
  absl::Status started = body->reader->Start();
  if (!started.ok()) return started;
  body->writer = std::make_unique<WriteLane>(parts);
  started = body->writer->Start();
  // Nothing was asked of the reader, so it ends at once.
  if (!started.ok()) (void)body->reader->Stop(kNever);
  return started;
}

FileTier::FileTier(std::unique_ptr<Body> body) : body_(std::move(body)) {
  MutexLock lock(&place_->mu);
  place_->body = body_.get();
}

FileTier::~FileTier() {
  if (!stopped_) (void)Stop(Now());
  if (abandoned_) (void)body_.release();
}

void FileTier::Read(std::span<const ReadRequest> requests) { body_->reader->Read(requests); }

void FileTier::Write(WriteRequest request) { body_->writer->Write(std::move(request)); }

void FileTier::SetAside(SetAsideRequest request) {
  body_->housekeeping->SetAside(std::move(request));
}

void FileTier::Measure(Ticket ticket) { body_->housekeeping->Measure(ticket); }

absl::AnyInvocable<absl::Status()> FileTier::Recheck() const {
  auto root = std::make_shared<UniqueFd>(Root().fd);
  return [root, place = place_, options = body_->options, direct = body_->facts.direct] {
    if (!root->valid()) return absl::ResourceExhaustedError("no descriptor for " + options.root);
    UniqueFd renewed;
    absl::Status status = tier::Recheck(*root, options, direct, &renewed);
    if (!renewed.valid()) return status;
    MutexLock lock(&place->mu);
    if (place->body == nullptr) return status;
    // First: whoever finds the new one finds the new number.
    place->body->stats.remounts.Add();
    // The lanes keep their number for the root, which is of the new one from now on.
    if (dup3(renewed.get(), place->body->root.get(), O_CLOEXEC) < 0) {
      return ErrnoStatus(errno, "put in its place", options.root);
    }
    place->body->reader->ForgetAll();
    spdlog::warn("tier mounted anew, its other file system is let go: tier={} root={}",
                 options.name, options.root);
    return status;
  };
}

TierRoot FileTier::Root() const {
  MutexLock lock(&place_->mu);
  return {UniqueFd(fcntl(body_->root.get(), F_DUPFD_CLOEXEC, 0)), body_->stats.remounts.Get()};
}

bool FileTier::Stop(TimeNs deadline) {
  stopped_ = true;
  {
    MutexLock lock(&place_->mu);
    place_->body = nullptr;
  }
  // Housekeeping first: it speaks to the reader.
  const bool kept = body_->housekeeping->Stop(deadline);
  const bool written = body_->writer->Stop(deadline);
  const bool read = body_->reader->Stop(deadline);
  abandoned_ = !(kept && written && read);
  return !abandoned_;
}

absl::StatusOr<std::unique_ptr<Tier>> OpenFileTier(const TierOptions& options,
                                                   std::span<std::byte> memory,
                                                   CompletionSink* sink) {
  return FileTier::Open(options, memory, sink, {});
}

}  // namespace kvstream::tier
