// What a configuration needs of the process' limits, and what they are.
//
// Have is what can be found out: kNone where the system does not tell.
//
// Thread rule: RaiseOpenFiles at the start, before other threads; the rest any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "server/config/options.h"

namespace kvstream {

struct Limit {
  // No limit.
  static constexpr uint64_t kNone = UINT64_MAX;

  uint64_t need = 0;
  uint64_t have = 0;
  // How an operator raises it.
  std::string raise;

  bool enough() const { return have >= need; }
};

// Bytes of locked memory: each ring accounts itself and the whole pool anew, two rings for each
// tier that may use io_uring. kNone for a process with CAP_IPC_LOCK.
Limit LockedMemory(const config::Options& options);

// Descriptors: those the tiers keep open, and those of as many sessions as may be open.
Limit OpenFiles(const config::Options& options);

// Bytes of memory for the pool and what the daemon needs besides, against what the machine and its
// cgroup can still give. Host buffers come on top, as clients ask for them.
Limit Memory(const config::Options& options);

// Most descriptors that each of so many tiers keeps open, so that a low limit leaves the rest of
// the daemon enough of them.
uint32_t OpenFilesPerTier(const Limit& files, size_t tiers);

// Names of the files and fields of a cgroup version's memory controller.
struct CgroupFiles {
  std::string limit;
  std::string used;
  std::string inactive_file;
  std::string active_file;
};
inline const CgroupFiles kCgroupV1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                   "total_inactive_file", "total_active_file"};
inline const CgroupFiles kCgroupV2{"memory.max", "memory.current", "inactive_file", "active_file"};

// Bytes that the limits of a cgroup and of those above it leave, the page cache counted as free.
uint64_t RoomInCgroup(const std::string& mount, std::string group, const CgroupFiles& files);

// Bytes of the pool in huge pages, against those that are free.
Limit HugePages(const config::Options& options);

// Raises the soft limit of open files to the hard one.
void RaiseOpenFiles();

}  // namespace kvstream
