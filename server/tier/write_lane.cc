#include "server/tier/write_lane.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "server/base/check.h"
#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/tier/paths.h"

namespace kvstream::tier {
namespace {

void CheckAligned(std::span<const std::byte> bytes) {
  KV_CHECK(!bytes.empty() && bytes.size() % kBlockBytes == 0 &&
           reinterpret_cast<uintptr_t>(bytes.data()) % kBlockBytes == 0);
}

}  // namespace

WriteLane::WriteLane(LaneParts parts)
    : parts_(std::move(parts)), outbox_(parts_.sink), loop_(this, parts_.stats) {}

absl::Status WriteLane::Start() {
  return loop_.Start({.thread_name = "tier" + std::to_string(parts_.options->id.value) + "-write",
                      .engine = parts_.engine,
                      .entries = parts_.options->queue_depth + kFilesMax,
                      .threads = parts_.options->io_threads,
                      .memory = parts_.memory,
                      .wrap = parts_.wrap});
}

void WriteLane::Write(WriteRequest request) {
  KV_CHECK(request.header.size() == kBlockBytes);
  CheckAligned(request.header);
  for (const auto& piece : request.pieces) CheckAligned(piece);
  outbox_.Accept(1);
  {
    MutexLock lock(&mu_);
    inbox_.push_back(std::move(request));
  }
  loop_.Wake();
}

bool WriteLane::Stop(TimeNs deadline) {
  if (outbox_.WaitEmpty(deadline) && loop_.Join(deadline)) return true;
  outbox_.Abandon();
  return false;
}

void WriteLane::Advance() {
  std::vector<WriteRequest> taken;
  {
    MutexLock lock(&mu_);
    std::swap(taken, inbox_);
  }
  for (WriteRequest& request : taken) waiting_.push_back(std::move(request));
  while (!waiting_.empty() && writes_.size() < kFilesMax) {
    Begin(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  IssueParts();
  outbox_.Flush();
}

void WriteLane::Begin(WriteRequest request) {
  PendingWrite& write = writes_.emplace_back();
  write.request = std::move(request);
  write.temporary = RandomSibling(*write.request.path, ".tmp-");
  write.self = std::prev(writes_.end());
  OpenTemporary(&write);
}

void WriteLane::OpenTemporary(PendingWrite* write) {
  Operation open;
  open.kind = Operation::Kind::kOpen;
  open.fd = parts_.root_fd;
  open.path = write->temporary.c_str();
  open.open_flags =
      O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | (parts_.direct ? O_DIRECT : 0);
  loop_.Submit(open, [this, write](int32_t result) { OnOpened(write, result); });
}

void WriteLane::OnOpened(PendingWrite* write, int32_t result) {
  if (result >= 0) {
    write->fd = result;
    write->queued = true;
    ready_.push_back(write);
    return;
  }
  if (result == -ENOENT && !write->made_folders) return MakeNextFolder(write);
  write->Fail(-result);
  if (result == -EMFILE || result == -ENFILE) NoteDescriptorShortage(parts_);
  if (result == -EINVAL || result == -EEXIST) {
    // Some file systems make the file before they refuse O_DIRECT, and an open that is tried again
    // after EINTR may meet what it made.
    RemoveTemporary(write);
    return;
  }
  Complete(write);
}

void WriteLane::MakeNextFolder(PendingWrite* write) {
  const size_t from = write->folder.empty() ? 0 : write->folder.size() + 1;
  const size_t end = write->temporary.find('/', from);
  write->made_folders = end == std::string::npos;
  if (write->made_folders) return OpenTemporary(write);
  write->folder.assign(write->temporary, 0, end);
  Operation make;
  make.kind = Operation::Kind::kMakeFolder;
  make.fd = parts_.root_fd;
  make.path = write->folder.c_str();
  loop_.Submit(make, [this, write](int32_t result) {
    if (result >= 0 || result == -EEXIST) return MakeNextFolder(write);
    write->Fail(-result);
    Complete(write);
  });
}

void WriteLane::IssueParts() {
  while (!ready_.empty()) {
    PendingWrite* write = ready_.front();
    if (write->error != 0 || write->issued_all()) {
      ready_.pop_front();
      write->queued = false;
      if (write->in_flight == 0) Settle(write);
      continue;
    }
    if (parts_in_flight_ >= parts_.options->queue_depth) return;
    IssuePart(write);
  }
}

void WriteLane::IssuePart(PendingWrite* write) {
  const std::span<const std::byte> rest = write->Part(write->part).subspan(write->part_offset);
  const auto length =
      static_cast<uint32_t>(std::min<uint64_t>(rest.size(), parts_.options->io_bytes));
  Operation part;
  part.kind = Operation::Kind::kWrite;
  part.fd = write->fd;
  // A write only reads it.
  part.data = const_cast<std::byte*>(rest.data());
  part.offset = write->file_offset;
  part.length = length;
  part.granule = parts_.direct ? kBlockBytes : 1;
  write->part_offset += length;
  write->file_offset += length;
  if (length == rest.size()) {
    ++write->part;
    write->part_offset = 0;
  }
  ++write->in_flight;
  ++parts_in_flight_;
  loop_.Submit(part, [this, write, length](int32_t result) { OnPart(write, length, result); });
}

void WriteLane::OnPart(PendingWrite* write, uint32_t length, int32_t result) {
  --parts_in_flight_;
  --write->in_flight;
  if (result < 0) {
    write->Fail(-result);
  } else {
    parts_.stats->bytes_written.Add(static_cast<uint64_t>(result));
    if (static_cast<uint32_t>(result) < length) write->Fail(EIO);
  }
  if (write->in_flight == 0 && !write->queued) Settle(write);
}

void WriteLane::Settle(PendingWrite* write) {
  if (write->error != 0 || !parts_.options->fsync) {
    CloseTemporary(write);
    return;
  }
  Operation sync;
  sync.kind = Operation::Kind::kFsync;
  sync.fd = write->fd;
  loop_.Submit(sync, [this, write](int32_t result) {
    if (result < 0) write->Fail(-result);
    CloseTemporary(write);
  });
}

void WriteLane::CloseTemporary(PendingWrite* write) {
  Operation close;
  close.kind = Operation::Kind::kClose;
  close.fd = std::exchange(write->fd, -1);
  loop_.Submit(close, [this, write](int32_t result) {
    if (result < 0) write->Fail(-result);
    if (write->error == 0) {
      Link(write);
    } else {
      RemoveTemporary(write);
    }
  });
}

void WriteLane::Link(PendingWrite* write) {
  Operation link;
  link.kind = Operation::Kind::kLink;
  link.fd = parts_.root_fd;
  link.path = write->temporary.c_str();
  link.new_path = write->request.path->c_str();
  loop_.Submit(link, [this, write](int32_t result) {
    write->exists = result == -EEXIST;
    if (result < 0 && !write->exists) write->Fail(-result);
    RemoveTemporary(write);
  });
}

void WriteLane::RemoveTemporary(PendingWrite* write) {
  Operation unlink;
  unlink.kind = Operation::Kind::kUnlink;
  unlink.fd = parts_.root_fd;
  unlink.path = write->temporary.c_str();
  loop_.Submit(unlink, [this, write](int32_t result) {
    if (result < 0 && result != -ENOENT) {
      // The file is published or not, whatever becomes of the temporary.
      parts_.stats->temporaries_left.Add();
      if (left_quiet_.IsOver(Now())) {
        spdlog::warn("temporary files are left behind: tier={} file={} errno={}",
                     parts_.options->name, write->temporary, -result);
      }
    }
    if (write->exists) {
      OpenExisting(write);
    } else {
      Complete(write);
    }
  });
}

void WriteLane::OpenExisting(PendingWrite* write) {
  Operation open;
  open.kind = Operation::Kind::kOpen;
  open.fd = parts_.root_fd;
  open.path = write->request.path->c_str();
  open.open_flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
  loop_.Submit(open, [this, write](int32_t result) {
    if (result < 0) {
      Complete(write);
      return;
    }
    write->fd = result;
    StatExisting(write);
  });
}

void WriteLane::StatExisting(PendingWrite* write) {
  Operation stat;
  stat.kind = Operation::Kind::kStatx;
  stat.fd = write->fd;
  stat.stat = &write->existing_stat;
  loop_.Submit(stat, [this, write](int32_t result) {
    if (result < 0) {
      CloseExisting(write);
    } else {
      ReadExisting(write);
    }
  });
}

void WriteLane::ReadExisting(PendingWrite* write) {
  write->existing_header.resize(kBlockBytes);
  Operation read;
  read.kind = Operation::Kind::kRead;
  read.fd = write->fd;
  read.data = write->existing_header.data();
  read.length = kBlockBytes;
  loop_.Submit(read, [this, write](int32_t result) {
    write->existing_header.resize(static_cast<size_t>(std::max(result, 0)));
    CloseExisting(write);
  });
}

void WriteLane::CloseExisting(PendingWrite* write) {
  Operation close;
  close.kind = Operation::Kind::kClose;
  close.fd = std::exchange(write->fd, -1);
  loop_.Submit(close, [this, write](int32_t) { Complete(write); });
}

void WriteLane::Complete(PendingWrite* write) {
  Completion completion;
  completion.kind = Completion::Kind::kWrite;
  completion.tier = parts_.options->id;
  completion.ticket = write->request.ticket;
  if (write->exists) {
    completion.code = absl::StatusCode::kAlreadyExists;
    completion.error = EEXIST;
    completion.existing_header = std::move(write->existing_header);
    completion.existing_bytes = write->existing_stat.stx_size;
  } else if (write->error != 0) {
    completion.code = ErrnoStatus(write->error, "write", *write->request.path).code();
    completion.error = write->error;
    parts_.stats->write_errors.Add();
  }
  outbox_.Add(std::move(completion));
  writes_.erase(write->self);
}

}  // namespace kvstream::tier
