#include "server/tier/probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/base/random.h"
#include "server/base/unique_fd.h"
#include "server/tier/lane_parts.h"
#include "server/tier/paths.h"
#include "server/tier/read_lane.h"
#include "server/tier/wait_until.h"
#include "server/tier/write_lane.h"

namespace kvstream::tier {
namespace {

constexpr TimeNs kPatience = 30 * kSecond;
constexpr uint64_t kBlocks = 4;
constexpr uint64_t kFileBytes = kBlocks * kBlockBytes;

// Waits for completions in turn.
class ProbeSink final : public CompletionSink {
 public:
  void OnCompletions(std::span<Completion> completions) override {
    std::lock_guard lock(mu_);
    for (Completion& c : completions) arrived_.push_back(std::move(c));
    changed_.notify_all();
  }

  // The first failure among the next `n` completions, or an ok one.
  absl::StatusOr<Completion> Wait(size_t n, TimeNs deadline) {
    std::unique_lock lock(mu_);
    if (!WaitUntil(lock, changed_, deadline, [&] { return arrived_.size() >= n; })) {
      return absl::DeadlineExceededError("the file system does not answer");
    }
    Completion worst;
    for (Completion& c : arrived_) {
      if (worst.code == absl::StatusCode::kOk) worst = std::move(c);
    }
    arrived_.clear();
    return worst;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::vector<Completion> arrived_;
};

// One try. Everything that the lanes touch is in here, so that a try whose I/O never comes back
// can be left behind whole.
class Try {
 public:
  Try(const TierOptions& options, int root_fd, bool direct)
      : options_(options),
        root_(fcntl(root_fd, F_DUPFD_CLOEXEC, 0)),
        path_(RandomSibling("v1/", ".probe-")),
        deadline_(Now() + kPatience),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, 2 * kFileBytes))),
        parts_{.options = &options_,
               .root_fd = root_.get(),
               .direct = direct,
               .stats = &stats_,
               .sink = &sink_,
               .memory = {memory_.get(), 2 * kFileBytes},
               .hook = {}},
        reader_(parts_),
        writer_(parts_) {}

  absl::Status Start() {
    if (!root_.valid()) return ErrnoStatus(errno, "duplicate the descriptor of", options_.root);
    const absl::Status status = reader_.Start();
    return status.ok() ? writer_.Start() : status;
  }

  // OK, or what failed. *error is the errno behind it, 0 if none.
  absl::Status Run(int* error) {
    for (uint64_t at = 0; at < kFileBytes; at += 16) {
      const auto random = RandomBytes16();
      std::memcpy(memory_.get() + at, random.data(), random.size());
    }
    const std::span<const std::byte> bytes(memory_.get(), kFileBytes);
    writer_.Write(
        {.ticket = {},
         .path = &path_,
         .header = bytes.first(kBlockBytes),
         .pieces = {bytes.subspan(kBlockBytes, 2 * kBlockBytes), bytes.subspan(3 * kBlockBytes)}});
    absl::Status status = Wait(1, "write", error);
    if (!status.ok()) return status;
    // Block by block, because a file system that wants more alignment takes the whole at once.
    std::byte* copy = memory_.get() + kFileBytes;
    std::vector<ReadRequest> reads;
    for (uint64_t at = 0; at < kFileBytes; at += kBlockBytes) {
      reads.push_back({{}, &path_, at, kBlockBytes, copy + at});
    }
    reader_.Read(reads);
    status = Wait(reads.size(), "read", error);
    if (status.ok() && std::memcmp(memory_.get(), copy, kFileBytes) != 0) {
      status = absl::DataLossError("read " + Where() + ": other bytes than were written");
    }
    return status;
  }

  uint32_t Alignment() const {
#ifdef STATX_DIOALIGN
    struct statx stat {};
    if (statx(root_.get(), path_.c_str(), AT_SYMLINK_NOFOLLOW, STATX_DIOALIGN, &stat) == 0 &&
        (stat.stx_mask & STATX_DIOALIGN) != 0 && stat.stx_dio_offset_align != 0) {
      return std::max(stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    }
#endif
    return kBlockBytes;
  }

  // Unlinks the file, if it was made. 0 or an errno.
  int Remove() const {
    return unlinkat(root_.get(), path_.c_str(), 0) == 0 || errno == ENOENT ? 0 : errno;
  }

  // False when the lanes still run: the object must be left behind.
  bool Stop() {
    const bool written = writer_.Stop(deadline_);
    return reader_.Stop(deadline_) && written;
  }

  std::string Where() const { return "probe file " + options_.root + "/" + path_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  absl::Status Wait(size_t n, std::string_view operation, int* error) {
    const absl::StatusOr<Completion> completion = sink_.Wait(n, deadline_);
    std::string what(operation);
    what.append(" ").append(Where());
    if (!completion.ok()) {
      return absl::Status(completion.status().code(),
                          what + ": " + std::string(completion.status().message()));
    }
    *error = completion->error;
    if (*error != 0) return ErrnoStatus(*error, operation, Where());
    if (completion->code == absl::StatusCode::kOk) return absl::OkStatus();
    return absl::Status(completion->code, what + ": the file is shorter than was written");
  }

  const TierOptions options_;
  const UniqueFd root_;
  const std::string path_;
  const TimeNs deadline_;
  const std::unique_ptr<std::byte, Free> memory_;
  TierStats stats_;
  ProbeSink sink_;
  const LaneParts parts_;
  ReadLane reader_;
  WriteLane writer_;
};

absl::StatusOr<ProbeResult> ProbeOnce(const TierOptions& options, int root_fd, bool direct,
                                      int* error) {
  auto attempt = std::make_unique<Try>(options, root_fd, direct);
  absl::Status status = attempt->Start();
  if (status.ok()) status = attempt->Run(error);
  ProbeResult result{.direct = direct, .alignment = kBlockBytes};
  if (status.ok() && direct) result.alignment = attempt->Alignment();
  if (!attempt->Stop()) {
    (void)attempt.release();
    return status.ok() ? absl::DeadlineExceededError("stop the probe of " + options.root) : status;
  }
  const int removed = attempt->Remove();
  if (status.ok() && removed != 0) status = ErrnoStatus(removed, "unlink", attempt->Where());
  if (!status.ok()) return status;
  return result;
}

}  // namespace

absl::StatusOr<ProbeResult> Probe(const TierOptions& options, int root_fd) {
  int error = 0;
  absl::StatusOr<ProbeResult> result = ProbeOnce(options, root_fd, /*direct=*/true, &error);
  if (result.ok() || (error != EINVAL && error != EOPNOTSUPP)) return result;
  spdlog::warn("direct I/O refused, using buffered: tier={} root={}", options.name, options.root);
  return ProbeOnce(options, root_fd, /*direct=*/false, &error);
}

}  // namespace kvstream::tier
