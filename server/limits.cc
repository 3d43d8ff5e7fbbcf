#include "server/limits.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "server/base/logging.h"

namespace kvstream {
namespace {

constexpr uint64_t kRingsPerTier = 2;
// A ring's own memory, and that of the probe's ring before it, which the kernel frees late.
constexpr uint64_t kRingBytes = 128 * kKiB;
// Sockets, sessions, host buffers, rings and files being written.
constexpr uint64_t kOtherDescriptors = 256;

uint64_t SoftLimit(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return Limit::kNone;
  return limit.rlim_cur;
}

bool MayLockAll() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & (1u << CAP_IPC_LOCK)) != 0;
}

}  // namespace

Limit LockedMemory(const config::Options& options) {
  uint64_t rings = 0;
  for (const config::TierOptions& tier : options.tiers) {
    if (tier.io_engine != config::IoEngine::kThreads) rings += kRingsPerTier;
  }
  return {.need = rings * (options.pool_bytes + kRingBytes),
          .have = MayLockAll() ? Limit::kNone : SoftLimit(RLIMIT_MEMLOCK),
          .raise = "ulimit -l, or LimitMEMLOCK= of the service"};
}

Limit OpenFiles(const config::Options& options) {
  uint64_t need = kOtherDescriptors;
  for (const config::TierOptions& tier : options.tiers) need += tier.open_files;
  return {.need = need,
          .have = SoftLimit(RLIMIT_NOFILE),
          .raise = "ulimit -n, or LimitNOFILE= of the service"};
}

void RaiseOpenFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    spdlog::warn("limit of open files not raised: errno={}", errno);
  }
}

}  // namespace kvstream
