#include "server/engine/snapshot_run.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

#include "server/base/errno_status.h"
#include "server/store/index_snapshot.h"

namespace kvstream::engine {
namespace {

absl::Status WriteAt(int fd, std::string_view bytes, size_t at, std::string_view path) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write", path);
    bytes.remove_prefix(static_cast<size_t>(n));
    at += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

void SnapshotRun::Run() {
  pthread_setname_np(pthread_self(), "snapshot");
  const std::string temporary = TemporaryName();
  (void)mkdirat(root_.get(), path_.substr(0, path_.rfind('/')).c_str(), 0777);
  absl::Status status = Write(temporary);
  if (status.ok() && cancelled()) status = absl::CancelledError("cancelled");
  if (status.ok() && renameat(root_.get(), temporary.c_str(), root_.get(), path_.c_str()) != 0) {
    status = ErrnoStatus(errno, "rename", temporary);
  }
  if (!status.ok()) (void)unlinkat(root_.get(), temporary.c_str(), 0);
  MutexLock lock(&mu_);
  status_ = status;
  ended_ = true;
  changed_.NotifyAll();
}

std::string SnapshotRun::TemporaryName() const {
  static std::atomic<uint64_t> runs{0};
  const size_t name = path_.rfind('/') + 1;
  return path_.substr(0, name) + ".tmp-" + path_.substr(name) + "-" + std::to_string(getpid()) +
         "-" + std::to_string(runs.fetch_add(1));
}

absl::Status SnapshotRun::Write(const std::string& temporary) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
  const UniqueFd fd(openat(root_.get(), temporary.c_str(), flags, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, "open", temporary);
  size_t at = store::kSnapshotHeaderBytes;
  std::string piece;
  while (true) {
    if (!NextPiece(&piece)) return absl::CancelledError("cancelled");
    if (piece.empty()) break;
    if (absl::Status s = WriteAt(fd.get(), piece, at, temporary); !s.ok()) return s;
    at += piece.size();
  }
  {
    MutexLock lock(&mu_);
    piece = header_;
  }
  if (absl::Status s = WriteAt(fd.get(), piece, 0, temporary); !s.ok()) return s;
  // Else a crash might leave the name with half a file, where there was a whole one.
  if (fdatasync(fd.get()) != 0) return ErrnoStatus(errno, "fdatasync", temporary);
  return absl::OkStatus();
}

bool SnapshotRun::NextPiece(std::string* piece) {
  MutexLock lock(&mu_);
  while (pieces_.empty() && header_.empty() && !cancelled_) changed_.Wait(&mu_);
  if (cancelled_) return false;
  piece->clear();
  if (pieces_.empty()) return true;
  *piece = std::move(pieces_.front());
  pieces_.pop_front();
  unwritten_ -= piece->size();
  return true;
}

void SnapshotRun::Append(std::string piece) {
  if (piece.empty()) return;
  MutexLock lock(&mu_);
  unwritten_ += piece.size();
  pieces_.push_back(std::move(piece));
  changed_.NotifyAll();
}

void SnapshotRun::Finish(std::string header) {
  MutexLock lock(&mu_);
  header_ = std::move(header);
  changed_.NotifyAll();
}

void SnapshotRun::Cancel() {
  MutexLock lock(&mu_);
  cancelled_ = true;
  changed_.NotifyAll();
}

size_t SnapshotRun::unwritten() {
  MutexLock lock(&mu_);
  return unwritten_;
}

bool SnapshotRun::cancelled() {
  MutexLock lock(&mu_);
  return cancelled_;
}

bool SnapshotRun::ended() {
  MutexLock lock(&mu_);
  return ended_;
}

absl::Status SnapshotRun::status() {
  MutexLock lock(&mu_);
  return status_;
}

bool SnapshotRun::WaitEnded(TimeNs deadline) {
  MutexLock lock(&mu_);
  while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
  }
  return ended_;
}

}  // namespace kvstream::engine
