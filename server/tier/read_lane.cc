#include "server/tier/read_lane.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "server/base/check.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"

namespace kvstream::tier {
namespace {

absl::StatusCode CodeOf(const PendingRead& read) {
  if (read.truncated) return absl::StatusCode::kDataLoss;
  if (read.error == 0) return absl::StatusCode::kOk;
  // The file that was there is gone, which is a miss like any other.
  if (read.error == ESTALE) return absl::StatusCode::kNotFound;
  return ErrnoStatus(read.error, "read", *read.request.path).code();
}

}  // namespace

ReadLane::ReadLane(LaneParts parts)
    : parts_(std::move(parts)),
      outbox_(parts_.sink),
      loop_(this, parts_.stats),
      files_(parts_.options->open_files_max) {}

absl::Status ReadLane::Start() {
  return loop_.Start({.thread_name = "tier" + std::to_string(parts_.options->id.value) + "-read",
                      .engine = parts_.engine,
                      .entries = parts_.options->queue_depth + kOpensMax,
                      .threads = parts_.options->io_threads,
                      .memory = parts_.memory,
                      .wrap = parts_.wrap});
}

void ReadLane::Read(std::span<const ReadRequest> requests) {
  for (const ReadRequest& r : requests) {
    KV_CHECK(r.length > 0 && r.length % kBlockBytes == 0 && r.offset % kBlockBytes == 0 &&
             reinterpret_cast<uintptr_t>(r.buffer) % kBlockBytes == 0);
  }
  outbox_.Accept(requests.size());
  {
    MutexLock lock(&mu_);
    inbox_.reads.insert(inbox_.reads.end(), requests.begin(), requests.end());
  }
  loop_.Wake();
}

void ReadLane::Forget(const std::string& path) {
  {
    MutexLock lock(&mu_);
    inbox_.forget.push_back(path);
  }
  loop_.Wake();
}

void ReadLane::ForgetAll() {
  {
    MutexLock lock(&mu_);
    inbox_.forget_all = true;
  }
  loop_.Wake();
}

bool ReadLane::Stop(TimeNs deadline) {
  if (outbox_.WaitEmpty(deadline)) {
    {
      MutexLock lock(&mu_);
      inbox_.close_all = true;
    }
    if (loop_.Join(deadline)) return true;
  }
  outbox_.Abandon();
  return false;
}

void ReadLane::Advance() {
  TakeInbox();
  do {
    OpenWaiting();
  } while (IssuePieces());
  outbox_.Flush();
}

void ReadLane::TakeInbox() {
  Inbox taken;
  {
    MutexLock lock(&mu_);
    std::swap(taken, inbox_);
  }
  // Before the reads: one that came after a SetAside must not meet the old file.
  for (const std::string& path : taken.forget) Close(files_.Forget(path));
  if (taken.forget_all) {
    for (std::unique_ptr<OpenFile>& file : files_.ForgetAll()) Close(std::move(file));
  }
  for (const ReadRequest& request : taken.reads) {
    PendingRead& read = reads_.emplace_back();
    read.request = request;
    read.self = std::prev(reads_.end());
    unopened_.push_back(&read);
  }
  if (!taken.close_all) return;
  while (std::unique_ptr<OpenFile> file = files_.EvictIdle()) Close(std::move(file));
}

void ReadLane::OpenWaiting() {
  while (!unopened_.empty()) {
    PendingRead* read = unopened_.front();
    OpenFile* file = files_.Find(*read->request.path);
    if (file == nullptr) {
      if (opens_in_flight_ >= kOpensMax) return;
      if (files_.full()) {
        std::unique_ptr<OpenFile> evicted = files_.EvictIdle();
        if (evicted == nullptr) return;
        Close(std::move(evicted));
      }
      file = files_.Insert(*read->request.path);
      StartOpen(file);
    }
    unopened_.pop_front();
    files_.Acquire(file);
    read->file = file;
    if (file->fd < 0) {
      file->waiters.push_back(read);
    } else {
      read->queued = true;
      ready_.push_back(read);
    }
  }
}

void ReadLane::StartOpen(OpenFile* file) {
  ++opens_in_flight_;
  Operation open;
  open.kind = Operation::Kind::kOpen;
  open.fd = parts_.root_fd;
  open.path = file->path.c_str();
  open.open_flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | (parts_.direct ? O_DIRECT : 0);
  loop_.Submit(open, [this, file](int32_t result) { OnOpened(file, result); });
}

void ReadLane::OnOpened(OpenFile* file, int32_t result) {
  --opens_in_flight_;
  if ((result == -EMFILE || result == -ENFILE) && RetryOpen(file)) return;
  const std::vector<PendingRead*> waiters = std::move(file->waiters);
  file->waiters.clear();
  if (result >= 0) {
    file->fd = result;
    parts_.stats->open_files.Add();
    for (PendingRead* read : waiters) {
      read->queued = true;
      ready_.push_back(read);
    }
    return;
  }
  for (PendingRead* read : waiters) {
    read->error = -result;
    // The file goes with the last of its users, who are these.
    Complete(read);
  }
}

bool ReadLane::RetryOpen(OpenFile* file) {
  NoteDescriptorShortage(parts_);
  if (std::exchange(file->retried, true)) return false;
  std::unique_ptr<OpenFile> idle = files_.EvictIdle();
  if (idle == nullptr) return false;
  // Its users keep the entry until the descriptor is free.
  Close(std::move(idle), [this, file](int32_t) { StartOpen(file); });
  return true;
}

bool ReadLane::IssuePieces() {
  bool ended = false;
  while (!ready_.empty()) {
    PendingRead* read = ready_.front();
    if (read->failed() || read->issued == read->request.length) {
      ready_.pop_front();
      read->queued = false;
      if (read->in_flight == 0) {
        Finish(read);
        ended = true;
      }
      continue;
    }
    if (pieces_in_flight_ >= parts_.options->queue_depth) break;
    IssuePiece(read);
  }
  return ended;
}

void ReadLane::IssuePiece(PendingRead* read) {
  const ReadRequest& request = read->request;
  const auto length =
      static_cast<uint32_t>(std::min(request.length - read->issued, parts_.options->io_bytes));
  Operation piece;
  piece.kind = Operation::Kind::kRead;
  piece.fd = read->file->fd;
  piece.data = request.buffer + read->issued;
  piece.offset = request.offset + read->issued;
  piece.length = length;
  piece.granule = parts_.direct ? kBlockBytes : 1;
  read->issued += length;
  ++read->in_flight;
  ++pieces_in_flight_;
  loop_.Submit(piece, [this, read, length](int32_t result) { OnPiece(read, length, result); });
}

void ReadLane::OnPiece(PendingRead* read, uint32_t length, int32_t result) {
  --pieces_in_flight_;
  --read->in_flight;
  if (!read->failed()) {
    if (result < 0) {
      read->error = -result;
    } else if (static_cast<uint32_t>(result) < length) {
      read->truncated = true;
    }
  }
  if (read->in_flight == 0 && !read->queued) Finish(read);
}

void ReadLane::Finish(PendingRead* read) {
  if (read->error != ESTALE || read->reopened) {
    Complete(read);
    return;
  }
  // The file was replaced under a network file system's handle: look the path up once more.
  ReleaseFile(read);
  read->reopened = true;
  read->error = 0;
  read->issued = 0;
  unopened_.push_back(read);
}

void ReadLane::Complete(PendingRead* read) {
  ReleaseFile(read);
  Completion completion;
  completion.kind = Completion::Kind::kRead;
  completion.tier = parts_.options->id;
  completion.ticket = read->request.ticket;
  completion.code = CodeOf(*read);
  completion.error = read->error;
  if (completion.code == absl::StatusCode::kOk) {
    parts_.stats->bytes_read.Add(read->request.length);
  } else if (completion.code != absl::StatusCode::kNotFound) {
    parts_.stats->read_errors.Add();
  }
  outbox_.Add(std::move(completion));
  reads_.erase(read->self);
}

void ReadLane::ReleaseFile(PendingRead* read) {
  // A descriptor that failed may be to blame: the next read gets a new one.
  if (read->failed()) Close(files_.Forget(read->file));
  Close(files_.Release(read->file));
  read->file = nullptr;
}

void ReadLane::Close(std::unique_ptr<OpenFile> file, IoLoop::Done done) {
  if (file == nullptr || file->fd < 0) return;
  parts_.stats->open_files.Sub();
  Operation close;
  close.kind = Operation::Kind::kClose;
  close.fd = file->fd;
  loop_.Submit(close, std::move(done));
}

}  // namespace kvstream::tier
