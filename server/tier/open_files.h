// The descriptors that a tier keeps open for reading: at most so many, least recently used closed
// first, never one in use. It decides; opening and closing are ReadLane's.
//
// Thread rule: belongs to the read lane's thread.
// Ownership: owns the entries, but never closes a descriptor: an entry that it hands out is its
// caller's to close.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kvstream::tier {

struct PendingRead;

struct OpenFile {
  std::string path;
  // Negative while its open is in flight.
  int fd = -1;
  // Reads that hold it; it is closed by none of them.
  uint32_t users = 0;
  // No longer found by its path: closed after its last user.
  bool forgotten = false;
  // Its open met the limit of descriptors, and is tried once more.
  bool retried = false;
  // Reads that wait for the open.
  std::vector<PendingRead*> waiters;
};

class OpenFiles {
 public:
  explicit OpenFiles(size_t files_max) : files_max_(files_max) {}

  OpenFile* Find(const std::string& path);
  // Whether another entry needs EvictIdle first.
  bool full() const { return files_.size() + forgotten_.size() >= files_max_; }
  // A new entry without descriptor or users. REQUIRES: !Find(path).
  OpenFile* Insert(const std::string& path);

  void Acquire(OpenFile* file);
  // Each of these returns the entry when it left the cache, else null.
  // After the last user of a forgotten file:
  [[nodiscard]] std::unique_ptr<OpenFile> Release(OpenFile* file);
  // The least recently used file without users:
  [[nodiscard]] std::unique_ptr<OpenFile> EvictIdle();
  // Ends the path's entry; a file in use or being opened leaves after its last user.
  [[nodiscard]] std::unique_ptr<OpenFile> Forget(const std::string& path);
  // The same for this very entry, which may be forgotten already.
  [[nodiscard]] std::unique_ptr<OpenFile> Forget(OpenFile* file);
  // Of all entries; those that left.
  [[nodiscard]] std::vector<std::unique_ptr<OpenFile>> ForgetAll();

 private:
  const size_t files_max_;
  absl::flat_hash_map<std::string, std::unique_ptr<OpenFile>> files_;
  std::vector<std::unique_ptr<OpenFile>> forgotten_;
  // Of files_, those without users, least recently used first.
  std::list<OpenFile*> idle_;
  absl::flat_hash_map<OpenFile*, std::list<OpenFile*>::iterator> idle_place_;
};

}  // namespace kvstream::tier
