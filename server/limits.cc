#include "server/limits.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>

#include "server/base/logging.h"

namespace kvstream {
namespace {

constexpr uint64_t kRingsPerTier = 2;
// A ring's own memory, and that of the probe's ring before it, which the kernel frees late.
constexpr uint64_t kRingBytes = 128 * kKiB;
// What the daemon needs besides the pool and the sessions' host buffers.
constexpr uint64_t kOtherMemoryBytes = 256 * kMiB;
// Sockets, rings, files being written, and some host buffers.
constexpr uint64_t kOtherDescriptors = 256;
// Its handoff connection, its gRPC connection, and a host buffer.
constexpr uint64_t kDescriptorsPerSession = 3;

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

// The number behind a name in a file of "name number" lines; none if there is no such line.
std::optional<uint64_t> ReadField(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    uint64_t value = 0;
    if (word == name && file >> value) return value;
  }
  return std::nullopt;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;  // "max" is no limit.
  return value;
}

// This process' folder in the hierarchy of a controller: "" is version 2.
std::string CgroupOf(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controller) return line.substr(second + 1);
  }
  return "";
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
  uint64_t need = kOtherDescriptors + kDescriptorsPerSession * options.sessions_max;
  for (const config::TierOptions& tier : options.tiers) need += tier.open_files;
  return {.need = need,
          .have = SoftLimit(RLIMIT_NOFILE),
          .raise = "ulimit -n, or LimitNOFILE= of the service"};
}

uint32_t OpenFilesPerTier(const Limit& files, size_t tiers) {
  if (files.enough()) return UINT32_MAX;
  return static_cast<uint32_t>(std::clamp<uint64_t>(files.have / 4 / tiers, 4, UINT32_MAX));
}

uint64_t RoomInCgroup(const std::string& mount, std::string group, const CgroupFiles& files) {
  uint64_t room = Limit::kNone;
  while (true) {
    const std::string folder = mount + group + "/";
    const auto limit = ReadNumber(folder + files.limit);
    const auto used = ReadNumber(folder + files.used);
    if (limit.has_value() && used.has_value()) {
      // The page cache of files is given back when it is needed.
      const uint64_t cache = ReadField(folder + "memory.stat", files.inactive_file).value_or(0) +
                             ReadField(folder + "memory.stat", files.active_file).value_or(0);
      const uint64_t held = *used - std::min(*used, cache);
      room = std::min(room, *limit > held ? *limit - held : 0);
    }
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return room;
    group.resize(slash);
  }
}

Limit Memory(const config::Options& options) {
  const auto available_kib = ReadField("/proc/meminfo", "MemAvailable:");
  const uint64_t machine = available_kib.has_value() ? *available_kib * kKiB : Limit::kNone;
  const uint64_t v1 = RoomInCgroup("/sys/fs/cgroup/memory", CgroupOf("memory"), kCgroupV1);
  const uint64_t v2 = RoomInCgroup("/sys/fs/cgroup", CgroupOf(""), kCgroupV2);
  // Reserved huge pages are nobody else's: they are not in what is available.
  const uint64_t pool = HugePages(options).enough() ? 0 : options.pool_bytes;
  return {.need = pool + kOtherMemoryBytes,
          .have = std::min({machine, v1, v2}),
          .raise = "a smaller pool.mib, or more memory for the machine or the cgroup"};
}

Limit HugePages(const config::Options& options) {
  const auto free = ReadField("/proc/meminfo", "HugePages_Free:");
  const auto reserved = ReadField("/proc/meminfo", "HugePages_Rsvd:");
  const auto page_kib = ReadField("/proc/meminfo", "Hugepagesize:");
  const uint64_t pages = free.value_or(0) - std::min(free.value_or(0), reserved.value_or(0));
  const uint64_t page_bytes = page_kib.value_or(2048) * kKiB;
  return {.need = (options.pool_bytes + page_bytes - 1) / page_bytes * page_bytes,
          .have = pages * page_bytes,
          .raise = "sysctl vm.nr_hugepages=" +
                   std::to_string((options.pool_bytes + page_bytes - 1) / page_bytes)};
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
