#include "server/engine/restore_run.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/catalog/folder.h"
#include "server/catalog/node_id.h"
#include "server/catalog/node_log.h"
#include "server/store/chunk_format.h"
#include "server/store/chunk_key.h"
#include "server/store/index_snapshot.h"
#include "server/tier/walk.h"

namespace kvstream::engine {
namespace {

// Of 40 million chunks.
constexpr uint64_t kSnapshotBytesMax = 4 * kGiB;

uint32_t SecondsSince(int64_t unix_seconds) {
  const int64_t passed = absl::ToUnixSeconds(absl::Now()) - unix_seconds;
  return static_cast<uint32_t>(std::clamp<int64_t>(passed, 0, UINT32_MAX));
}

// All of a file. NOT_FOUND where there is none.
absl::StatusOr<std::string> ReadWhole(int folder_fd, const std::string& path) {
  const UniqueFd fd(
      openat(folder_fd, path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "open", path);
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) return ErrnoStatus(errno, "stat", path);
  if (!S_ISREG(file.st_mode)) return absl::DataLossError(path + " is no file");
  if (static_cast<uint64_t>(file.st_size) > kSnapshotBytesMax) {
    return absl::DataLossError(path + " is too large");
  }
  std::string bytes(static_cast<size_t>(file.st_size), '\0');
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = pread(fd.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", path);
    if (n == 0) break;
    at += static_cast<size_t>(n);
  }
  bytes.resize(at);
  return bytes;
}

FoundFile FoundFileOf(const store::OwnFile& file, uint32_t snapshot_age) {
  const store::ChunkFacts& chunk = file.chunk;
  const uint64_t unused = uint64_t{file.unused_seconds} + snapshot_age;
  return {chunk.key,        chunk.siblings,
          chunk.name_space, chunk.shape,
          chunk.content,    {chunk.checksums.begin(), chunk.checksums.end()},
          file.before,      static_cast<uint32_t>(std::min<uint64_t>(unused, UINT32_MAX))};
}

}  // namespace

RestoreRun::RestoreRun(EventPoster* poster, EngineStats* stats, Plan plan)
    : plan_(std::move(plan)), poster_(poster), stats_(stats) {}

void RestoreRun::Run() {
  pthread_setname_np(pthread_self(), "restore");
  ReadSnapshot();
  TierRestored done{plan_.tier, plan_.root.mount, GoOn(), false};
  Post(done);
  if (plan_.walk) Walk();
  done.ended = true;
  MutexLock lock(&mu_);
  ended_ = true;
  changed_.NotifyAll();
  if (poster_ != nullptr) poster_->Post(done);
}

void RestoreRun::ReadSnapshot() {
  const TimeNs began = Now();
  SnapshotOpened opened{plan_.tier, plan_.root.mount};
  if (!plan_.home.valid()) return Post(opened);
  absl::StatusOr<store::SnapshotReader> reader = absl::NotFoundError("no snapshot");
  auto file = ReadWhole(plan_.home.get(), plan_.snapshot);
  if (file.ok()) {
    reader = store::SnapshotReader::Open(*std::move(file));
  } else {
    reader = file.status();
  }
  if (!reader.ok()) {
    if (!Listened()) return;
    if (absl::IsNotFound(reader.status())) {
      spdlog::info("no index snapshot: tier={}", plan_.name);
    } else {
      Count(&TierEngineStats::snapshots_unusable, 1);
      spdlog::warn("index snapshot not used: tier={} file={} cause={}", plan_.name, plan_.snapshot,
                   std::string(reader.status().message()));
    }
    Post(opened);
    if (plan_.catalog) (void)ReadCatalog();
    return;
  }
  opened.file_bytes = reader->file_bytes();
  opened.files = reader->files();
  Post(opened);
  const uint32_t age = SecondsSince(static_cast<int64_t>(reader->seconds()));
  std::vector<FoundFile> files;
  bool more = true;
  reader->ForEach([&](const store::OwnFile& own) {
    files.push_back(FoundFileOf(own, age));
    more = files.size() < kFilesAtOnce || Deliver(std::exchange(files, {}));
    return more;
  });
  if (!more || !Deliver(std::move(files))) return;
  // Only now: what the snapshot names is waited for.
  named_.reserve(reader->files());
  reader->ForEach([&](const store::OwnFile& own) {
    named_.insert(own.chunk.key);
    return true;
  });
  if (plan_.catalog && !ReadCatalog()) return;
  spdlog::info("index snapshot read: tier={} files={} bytes={} age_s={} ms={}", plan_.name,
               reader->files(), reader->file_bytes(), age, (Now() - began) / kMillisecond);
}

bool RestoreRun::ReadCatalog() {
  Counter calls;
  const auto node = catalog::LoadNodeId(plan_.home.get());
  absl::Status status = node.status();
  std::vector<FoundFile> files;
  if (node.ok()) {
    auto folder = catalog::Folder::Open(plan_.root.fd.get(), catalog::kNodesFolder, &calls);
    status = folder.status();
    if (folder.ok()) {
      status = catalog::ReadNodeFiles(*folder, *node, [&](const store::CatalogEntry& file) {
        if (!named_.contains(file.chunk.key)) {
          files.push_back(FoundFileOf({file.chunk, file.before, 0}, 0));
        }
        return GoOn();
      });
    }
  }
  if (!Listened()) return false;
  if (!status.ok()) {
    Count(&TierEngineStats::snapshots_unusable, 1);
    spdlog::warn("this node's log in the catalog is not used: tier={} cause={}", plan_.name,
                 std::string(status.message()));
  } else if (!files.empty()) {
    spdlog::info("files that the snapshot does not name: tier={} files={}", plan_.name,
                 files.size());
  }
  for (size_t end = files.size(); end > 0;) {
    const size_t begin = end - std::min(end, kFilesAtOnce);
    std::vector<FoundFile> some(
        std::make_move_iterator(files.begin() + static_cast<int64_t>(begin)),
        std::make_move_iterator(files.begin() + static_cast<int64_t>(end)));
    std::ranges::reverse(some);
    if (!Deliver(std::move(some))) return false;
    end = begin;
  }
  return true;
}

void RestoreRun::Walk() {
  const TimeNs began = Now();
  const uint64_t named = named_.size();
  tier::WalkCounts counts;
  std::vector<std::string> paths;
  bool more = true;
  const absl::Status walked = tier::WalkChunks(
      plan_.root.fd.get(), [&] { return more = GoOn(); },
      [&](const std::string& path) {
        if (named_.erase(store::KeyOfPath(path)) > 0) return true;
        paths.push_back(path);
        if (paths.size() == kPathsAtOnce) more = BeginHeaders(std::exchange(paths, {}));
        return more;
      },
      [&](int folder_fd, const char* name) { MaybeRemove(folder_fd, name); }, &counts);
  more = more && BeginHeaders(std::move(paths)) && EndHeaders();
  headers_.reset();
  if (!more) return;
  // A folder that could not be read may have them.
  const bool whole = walked.ok() && counts.unreadable == 0;
  if (whole && !TellMissing()) return;
  MutexLock lock(&mu_);
  if (stats_ == nullptr) return;
  spdlog::log(whole ? spdlog::level::info : spdlog::level::warn,
              "a tier was looked through for its files: tier={} named={} found={} missing={} "
              "unusable={} foreign={} temporaries_removed={} folders_unreadable={} ms={}{}",
              plan_.name, named, found_, missing_, unusable_, counts.foreign, temporaries_,
              counts.unreadable, (Now() - began) / kMillisecond,
              walked.ok() ? "" : " cause=" + std::string(walked.message()));
}

RestoreRun::Headers::~Headers() {
  for (std::thread& thread : threads) thread.join();
}

bool RestoreRun::BeginHeaders(std::vector<std::string> paths) {
  if (!EndHeaders()) return false;
  headers_.emplace();
  headers_->paths = std::move(paths);
  headers_->found.resize(kReaders);
  const auto read = [this, headers = &*headers_](size_t reader) {
    for (size_t i = reader; i < headers->paths.size(); i += kReaders) {
      ReadHeader(headers->paths[i], &headers->found[reader]);
    }
  };
  for (size_t reader = 0; reader < kReaders; ++reader) {
    try {
      headers_->threads.emplace_back(read, reader);
    } catch (const std::system_error&) {
      read(reader);
    }
  }
  return true;
}

bool RestoreRun::EndHeaders() {
  if (!headers_.has_value()) return GoOn();
  for (std::thread& thread : headers_->threads) thread.join();
  headers_->threads.clear();
  auto parts = std::move(headers_->found);
  headers_.reset();
  for (std::vector<FoundFile>& part : parts) {
    found_ += part.size();
    if (!part.empty() && !Deliver(std::move(part))) return false;
  }
  return GoOn();
}

void RestoreRun::ReadHeader(const std::string& path, std::vector<FoundFile>* found) {
  alignas(tier::kBlockBytes) std::byte block[kHeaderBytes];
  const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (plan_.direct ? O_DIRECT : 0);
  const UniqueFd fd(openat(plan_.root.fd.get(), path.c_str(), flags));
  if (!fd.valid() && errno == ENOENT) return;
  struct stat file {};
  if (fd.valid() && fstat(fd.get(), &file) == 0 &&
      pread(fd.get(), block, sizeof block, 0) == static_cast<ssize_t>(sizeof block)) {
    const KeyDigest key = store::KeyOfPath(path);
    const auto header = store::DecodeHeaderOf(key, block, static_cast<uint64_t>(file.st_size));
    if (header.ok() && store::ChunkPath(store::NamespaceOf(*header), key) == path) {
      found->push_back({.key = key,
                        .siblings = store::SiblingsOfEncodedKey(header->encoded_key),
                        .name_space = store::NamespaceOf(*header),
                        .shape = header->shape,
                        .content = header->content,
                        .checksums = {header->checksums.begin(), header->checksums.end()},
                        .before = std::nullopt,
                        .unused_seconds = SecondsSince(file.st_mtim.tv_sec)});
      return;
    }
  }
  // Whoever stores the chunk, or a scrub, will judge it.
  MutexLock lock(&mu_);
  unusable_ += 1;
}

void RestoreRun::MaybeRemove(int folder_fd, const char* name) {
  struct stat file {};
  if (fstatat(folder_fd, name, &file, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(file.st_mode)) return;
  // A file on its way out of its name has had it for long, but not this one.
  const int64_t changed = std::max(file.st_mtim.tv_sec, file.st_ctim.tv_sec);
  if (SecondsSince(changed) < plan_.temporaries_grace / kSecond) return;
  if (unlinkat(folder_fd, name, 0) != 0) return;
  temporaries_ += 1;
  Count(&TierEngineStats::temporaries_removed, 1);
}

bool RestoreRun::TellMissing() {
  missing_ = named_.size();
  Count(&TierEngineStats::restored_missing, missing_);
  std::vector<KeyDigest> keys;
  const auto named = std::exchange(named_, {});
  for (const KeyDigest& key : named) {
    keys.push_back(key);
    if (keys.size() == kFilesAtOnce && !Deliver({}, std::exchange(keys, {}))) return false;
  }
  return Deliver({}, std::move(keys));
}

bool RestoreRun::Deliver(std::vector<FoundFile> files, std::vector<KeyDigest> missing) {
  MutexLock lock(&mu_);
  while (!stopped_ && untaken_ == kUntakenMax) changed_.Wait(&mu_);
  if (stopped_) return false;
  untaken_ += 1;
  poster_->Post(FilesFound{plan_.tier, plan_.root.mount, std::move(files), std::move(missing),
                           shared_from_this()});
  return true;
}

void RestoreRun::Taken() {
  MutexLock lock(&mu_);
  untaken_ -= 1;
  changed_.NotifyAll();
}

bool RestoreRun::GoOn() {
  MutexLock lock(&mu_);
  return !stopped_;
}

void RestoreRun::Post(Event event) {
  MutexLock lock(&mu_);
  if (poster_ != nullptr) poster_->Post(std::move(event));
}

void RestoreRun::Count(Counter TierEngineStats::*counter, uint64_t n) {
  MutexLock lock(&mu_);
  if (stats_ != nullptr) (stats_->tiers[plan_.tier.value].*counter).Add(n);
}

bool RestoreRun::ended() {
  MutexLock lock(&mu_);
  return ended_;
}

bool RestoreRun::Listened() {
  MutexLock lock(&mu_);
  return stats_ != nullptr;
}

void RestoreRun::Cancel() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

void RestoreRun::Stop(TimeNs deadline) {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
  while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
  }
  poster_ = nullptr;
  stats_ = nullptr;
}

}  // namespace kvstream::engine
