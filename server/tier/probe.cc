#include "server/tier/probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/base/mutex.h"
#include "server/base/random.h"
#include "server/base/run_within.h"
#include "server/base/unique_fd.h"
#include "server/tier/direct_io.h"
#include "server/tier/lane_parts.h"
#include "server/tier/paths.h"
#include "server/tier/read_lane.h"
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
    MutexLock lock(&mu_);
    for (Completion& c : completions) arrived_.push_back(std::move(c));
    changed_.NotifyAll();
  }

  // The first failure among the next `n` completions, or an ok one.
  absl::StatusOr<Completion> Wait(size_t n, TimeNs deadline) {
    MutexLock lock(&mu_);
    while (arrived_.size() < n) {
      if (!changed_.WaitUntil(&mu_, deadline) && arrived_.size() < n) {
        return absl::DeadlineExceededError("the file system does not answer");
      }
    }
    Completion worst;
    for (Completion& c : arrived_) {
      if (worst.code == absl::StatusCode::kOk) worst = std::move(c);
    }
    arrived_.clear();
    return worst;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<Completion> arrived_ ABSL_GUARDED_BY(mu_);
};

// One try. Everything that the lanes touch is in here, so that a try whose I/O never comes back
// can be left behind whole.
class Try {
 public:
  Try(const TierOptions& options, IoEngine engine, int root_fd, bool direct,
      const QueueWrapper& wrap)
      : options_(options),
        root_(fcntl(root_fd, F_DUPFD_CLOEXEC, 0)),
        path_(RandomSibling("v1/", ".probe-")),
        deadline_(Now() + kPatience),
        memory_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, 2 * kFileBytes))),
        parts_{.options = &options_,
               .root_fd = root_.get(),
               .engine = engine,
               .direct = direct,
               .stats = &stats_,
               .sink = &sink_,
               .wrap = wrap},
        reader_(parts_),
        writer_(parts_) {}

  // Fails where the engine does.
  absl::Status Start() {
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

absl::Status DoesNotAnswer(const TierOptions& options) {
  return absl::DeadlineExceededError("probe tier root " + options.root +
                                     ": the file system does not answer");
}

// *error is the errno of a file system that refused, *refused the error of an engine that did.
absl::Status ProbeOnce(const TierOptions& options, IoEngine engine, int root_fd, bool direct,
                       const QueueWrapper& wrap, int* error, absl::Status* refused) {
  auto attempt = std::make_unique<Try>(options, engine, root_fd, direct, wrap);
  *refused = attempt->Start();
  absl::Status status = refused->ok() ? attempt->Run(error) : *refused;
  if (!attempt->Stop()) {
    (void)attempt.release();
    return status.ok() ? DoesNotAnswer(options) : status;
  }
  const auto removed = RunWithin(kPatience, [a = attempt.get()] { return a->Remove(); });
  if (!removed.has_value()) {
    (void)attempt.release();
    return status.ok() ? DoesNotAnswer(options) : status;
  }
  if (status.ok() && *removed != 0) status = ErrnoStatus(*removed, "unlink", attempt->Where());
  return status;
}

// Empty where direct I/O is worth a try.
std::string WhyNotDirect(const DirectIo& told) {
  if (told.alignment > kBlockBytes) {
    return "direct I/O needs " + std::to_string(told.alignment) +
           "-byte alignment, the file format gives " + std::to_string(kBlockBytes);
  }
  return told.known && told.alignment == 0 ? told.file_system + " offers no direct I/O" : "";
}

}  // namespace

absl::StatusOr<ProbeResult> Probe(const TierOptions& options, IoEngine engine, int root_fd,
                                  absl::Status* refused, const QueueWrapper& wrap) {
  *refused = absl::OkStatus();
  auto root = std::make_shared<UniqueFd>(fcntl(root_fd, F_DUPFD_CLOEXEC, 0));
  if (!root->valid()) return ErrnoStatus(errno, "duplicate the descriptor of", options.root);
  const auto told =
      RunWithin(kPatience, [root, path = options.root] { return AskDirectIo(root->get(), path); });
  if (!told.has_value()) return DoesNotAnswer(options);
  if (!told->ok()) return told->status();

  int error = 0;
  ProbeResult result{.direct = true,
                     .alignment = (*told)->known ? (*told)->alignment : uint32_t{kBlockBytes},
                     .buffered_reason = WhyNotDirect(**told)};
  if (result.buffered_reason.empty()) {
    const absl::Status status =
        ProbeOnce(options, engine, root_fd, /*direct=*/true, wrap, &error, refused);
    if (status.ok()) return result;
    if (!refused->ok() || (error != EINVAL && error != EOPNOTSUPP)) return status;
    result.buffered_reason =
        std::string("O_DIRECT refused: ") + strerrorname_np(error) + " on " + (*told)->file_system;
  }
  spdlog::warn("using buffered I/O, which costs CPU and page cache: tier={} root={} cause={}",
               options.name, options.root, result.buffered_reason);
  result.direct = false;
  result.alignment = kBlockBytes;
  const absl::Status status =
      ProbeOnce(options, engine, root_fd, /*direct=*/false, wrap, &error, refused);
  if (!status.ok()) return status;
  return result;
}

}  // namespace kvstream::tier
