#include "server/tier/uring.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "server/base/check.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/base/types.h"

namespace kvstream::tier {
namespace {

// The kernel takes at most 1 GiB in one registered buffer.
constexpr uint64_t kSliceBytes = kGiB;
// Kernel threads for what cannot be done without blocking: opens, links, unlinks. The default, four
// a core, makes a batch of opens on a slow metadata server take many round trips.
constexpr unsigned kWorkersMax = 64;
// The completion of the poll for a wake.
constexpr uint64_t kWakeData = UINT64_MAX;

// The kernel copies it when it takes the submission.
__kernel_timespec retry_delay{0, IoQueue::kRetryDelayNs};

absl::Status CheckOperations(io_uring* ring) {
  const std::unique_ptr<io_uring_probe, decltype(&io_uring_free_probe)> probe(
      io_uring_get_probe_ring(ring), &io_uring_free_probe);
  if (probe == nullptr) {
    return absl::UnavailableError(
        "probe io_uring: the kernel is too old, or io_uring_register is refused");
  }
  for (int op : {IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_READ, IORING_OP_WRITE,
                 IORING_OP_FSYNC, IORING_OP_OPENAT, IORING_OP_CLOSE, IORING_OP_STATX,
                 IORING_OP_LINKAT, IORING_OP_UNLINKAT, IORING_OP_POLL_ADD, IORING_OP_TIMEOUT}) {
    if (!io_uring_opcode_supported(probe.get(), op)) {
      return absl::UnavailableError("probe io_uring: the kernel lacks operation " +
                                    std::to_string(op));
    }
  }
  // One that does nothing, since a sandbox may refuse io_uring_enter alone.
  io_uring_prep_nop(io_uring_get_sqe(ring));
  if (const int result = io_uring_submit_and_wait(ring, 1); result < 0) {
    return ErrnoStatus(-result, "submit to", "io_uring");
  }
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(ring, &cqe) == 0) io_uring_cqe_seen(ring, cqe);
  return absl::OkStatus();
}

}  // namespace

Uring::Uring(std::unique_ptr<io_uring> ring, UniqueFd wake)
    : ring_(std::move(ring)), wake_(std::move(wake)) {}

Uring::~Uring() { io_uring_queue_exit(ring_.get()); }

absl::StatusOr<std::unique_ptr<Uring>> Uring::Create(uint32_t entries) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "make", "an eventfd");
  auto ring = std::make_unique<io_uring>();
  int result = -EINVAL;
  // Best first; an older kernel answers EINVAL to a flag that it does not know.
  for (const unsigned mode :
       {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN, 0u}) {
    io_uring_params params{};
    params.flags = mode | IORING_SETUP_CLAMP;
    result = io_uring_queue_init_params(entries, ring.get(), &params);
    if (result != -EINVAL) break;
  }
  if (result == -ENOMEM) {
    return absl::ResourceExhaustedError(
        "set up io_uring: no memory, or the locked-memory limit (RLIMIT_MEMLOCK) is too small");
  }
  if (result < 0) return ErrnoStatus(-result, "set up", "io_uring");
  if ((ring->flags & IORING_SETUP_DEFER_TASKRUN) == 0) {
    spdlog::info("the kernel is too old for io_uring's best mode, completions cost more CPU");
  }
  std::unique_ptr<Uring> made(new Uring(std::move(ring), std::move(wake)));
  const absl::Status operations = CheckOperations(made->ring_.get());
  if (!operations.ok()) return operations;
  // Refused, it costs time only. 0 leaves the limit for sockets and pipes as it is.
  std::array<unsigned, 2> workers{kWorkersMax, 0};
  (void)io_uring_register_iowq_max_workers(made->ring_.get(), workers.data());
  return made;
}

int Uring::RegisterBuffers(std::span<std::byte> memory) {
  std::vector<iovec> slices;
  for (uint64_t at = 0; at < memory.size(); at += kSliceBytes) {
    slices.push_back({memory.data() + at, std::min(kSliceBytes, memory.size() - at)});
  }
  const int result =
      io_uring_register_buffers(ring_.get(), slices.data(), static_cast<unsigned>(slices.size()));
  if (result < 0) return -result;
  registered_ = memory;
  return 0;
}

int Uring::BufferOf(const std::byte* data, uint32_t length) const {
  const auto base = reinterpret_cast<uintptr_t>(registered_.data());
  const auto begin = reinterpret_cast<uintptr_t>(data);
  if (begin < base || begin + length > base + registered_.size()) return -1;
  const uint64_t first = (begin - base) / kSliceBytes;
  return first == (begin - base + length - 1) / kSliceBytes ? static_cast<int>(first) : -1;
}

bool Uring::Queue(const Operation& o, uint64_t user_data) {
  io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
  if (sqe == nullptr) return false;
  switch (o.kind) {
    case Operation::Kind::kRead:
      if (const int buffer = BufferOf(o.data, o.length); buffer >= 0) {
        io_uring_prep_read_fixed(sqe, o.fd, o.data, o.length, o.offset, buffer);
      } else {
        io_uring_prep_read(sqe, o.fd, o.data, o.length, o.offset);
      }
      break;
    case Operation::Kind::kWrite:
      if (const int buffer = BufferOf(o.data, o.length); buffer >= 0) {
        io_uring_prep_write_fixed(sqe, o.fd, o.data, o.length, o.offset, buffer);
      } else {
        io_uring_prep_write(sqe, o.fd, o.data, o.length, o.offset);
      }
      break;
    case Operation::Kind::kFsync:
      io_uring_prep_fsync(sqe, o.fd, 0);
      break;
    case Operation::Kind::kOpen:
      io_uring_prep_openat(sqe, o.fd, o.path, o.open_flags, kFileMode);
      break;
    case Operation::Kind::kClose:
      io_uring_prep_close(sqe, o.fd);
      break;
    case Operation::Kind::kLink:
      io_uring_prep_linkat(sqe, o.fd, o.path, o.fd, o.new_path, 0);
      break;
    case Operation::Kind::kUnlink:
      io_uring_prep_unlinkat(sqe, o.fd, o.path, 0);
      break;
    case Operation::Kind::kMakeFolder:
      io_uring_prep_mkdirat(sqe, o.fd, o.path, kFolderMode);
      break;
    case Operation::Kind::kStatx:
      io_uring_prep_statx(sqe, o.fd, "", AT_EMPTY_PATH, STATX_SIZE, o.stat);
      break;
  }
  io_uring_sqe_set_data64(sqe, user_data);
  return true;
}

bool Uring::QueueDelay(uint64_t user_data) {
  io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
  if (sqe == nullptr) return false;
  io_uring_prep_timeout(sqe, &retry_delay, 0, 0);
  io_uring_sqe_set_data64(sqe, user_data);
  return true;
}

void Uring::WatchWake() {
  io_uring_sqe* sqe = watching_wake_ ? nullptr : io_uring_get_sqe(ring_.get());
  if (sqe == nullptr) return;
  io_uring_prep_poll_add(sqe, wake_.get(), POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeData);
  watching_wake_ = true;
}

void Uring::Wake() {
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the loop is awake.
  (void)!write(wake_.get(), &one, sizeof one);
}

void Uring::Submit(bool wait) {
  WatchWake();
  // Without room for the watch, the wait would miss a wake: the next call has room.
  const int result = io_uring_submit_and_wait(ring_.get(), wait && watching_wake_ ? 1 : 0);
  if (result >= 0 || result == -EINTR) return;
  // The kernel has no memory for more, or wants completions taken first. What is queued stays
  // queued; the short wait keeps us from spinning.
  KV_CHECK(result == -EAGAIN || result == -EBUSY);
  io_uring_cqe* cqe = nullptr;
  (void)io_uring_wait_cqes(ring_.get(), &cqe, 1, &retry_delay, nullptr);
}

size_t Uring::Take(std::span<Event> events) {
  std::array<io_uring_cqe*, 64> cqes;
  const unsigned most = static_cast<unsigned>(std::min(events.size(), cqes.size()));
  const unsigned n = io_uring_peek_batch_cqe(ring_.get(), cqes.data(), most);
  size_t taken = 0;
  for (unsigned i = 0; i < n; ++i) {
    const uint64_t user_data = io_uring_cqe_get_data64(cqes[i]);
    if (user_data != kWakeData) {
      events[taken++] = {user_data, cqes[i]->res};
      continue;
    }
    // Emptied before the loop looks for work, so that no wake is lost.
    uint64_t count = 0;
    (void)!read(wake_.get(), &count, sizeof count);
    watching_wake_ = false;
  }
  io_uring_cq_advance(ring_.get(), n);
  return taken;
}

}  // namespace kvstream::tier
