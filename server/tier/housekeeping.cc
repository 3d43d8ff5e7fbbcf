#include "server/tier/housekeeping.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "server/base/check.h"
#include "server/base/clock.h"
#include "server/base/errno_status.h"
#include "server/base/logging.h"
#include "server/base/unique_fd.h"
#include "server/tier/judge.h"
#include "server/tier/paths.h"

namespace kvstream::tier {

Housekeeping::Housekeeping(const LaneParts& parts,
                           absl::AnyInvocable<void(const std::string&)> forget)
    : options_(*parts.options),
      root_fd_(parts.root_fd),
      direct_(parts.direct),
      stats_(*parts.stats),
      forget_(std::move(forget)),
      outbox_(parts.sink),
      thread_([this] { Run(); }) {}

Housekeeping::~Housekeeping() { KV_CHECK(!thread_.joinable()); }

void Housekeeping::SetAside(SetAsideRequest request) { Accept(std::move(request)); }

void Housekeeping::Measure(Ticket ticket) { Accept(ticket); }

void Housekeeping::Accept(Request request) {
  outbox_.Accept(1);
  MutexLock lock(&mu_);
  requests_.push_back(std::move(request));
  changed_.NotifyOne();
}

bool Housekeeping::Stop(TimeNs deadline) {
  if (!outbox_.WaitEmpty(deadline)) {
    outbox_.Abandon();
    return false;
  }
  {
    MutexLock lock(&mu_);
    exit_ = true;
    changed_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

void Housekeeping::Run() {
  const std::string name = "tier" + std::to_string(options_.id.value) + "-keep";
  pthread_setname_np(pthread_self(), name.c_str());
  while (true) {
    Request request;
    if (!Next(&request)) return;
    Completion completion;
    completion.tier = options_.id;
    std::visit([&](auto& wanted) { Do(wanted, &completion); }, request);
    outbox_.Add(std::move(completion));
    outbox_.Flush();
  }
}

bool Housekeeping::Next(Request* request) {
  MutexLock lock(&mu_);
  while (!exit_ && requests_.empty()) changed_.Wait(&mu_);
  if (requests_.empty()) return false;
  *request = std::move(requests_.front());
  requests_.pop_front();
  return true;
}

void Housekeeping::Do(Ticket measure, Completion* completion) const {
  completion->kind = Completion::Kind::kMeasure;
  completion->ticket = measure;
  struct statvfs info;
  if (fstatvfs(root_fd_, &info) != 0) {
    completion->error = errno;
    completion->code = ErrnoStatus(errno, "measure", options_.root).code();
    return;
  }
  completion->space = {.bytes = info.f_blocks * info.f_frsize,
                       .free_bytes = info.f_bavail * info.f_frsize,
                       .inodes = info.f_files,
                       .free_inodes = info.f_favail};
}

void Housekeeping::Do(SetAsideRequest& request, Completion* completion) {
  completion->kind = Completion::Kind::kSetAside;
  completion->ticket = request.ticket;
  absl::Status not_judged;
  completion->error = TakeAside(request, &not_judged);
  completion->code = not_judged.code();
  if (completion->error != 0) {
    completion->code = ErrnoStatus(completion->error, "set aside", *request.path).code();
  }
}

int Housekeeping::TakeAside(SetAsideRequest& request, absl::Status* not_judged) {
  const std::string& path = *request.path;
  struct stat info;
  if (fstatat(root_fd_, path.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(info.st_mode)) {
    return S_ISDIR(info.st_mode) ? EISDIR : EINVAL;  // Not ours to move.
  }
  if (request.damaged == nullptr) {
    const int error = unlinkat(root_fd_, path.c_str(), 0) == 0 ? 0 : errno;
    forget_(path);
    return error == ENOENT ? 0 : error;
  }
  const std::string aside = RandomSibling(path, ".aside-");
  if (renameat(root_fd_, path.c_str(), root_fd_, aside.c_str()) != 0) {
    if (errno != ENOENT) return errno;
    forget_(path);
    return Replace(request);
  }
  forget_(path);
  const UniqueFd fd = OpenToJudge(root_fd_, aside, direct_);
  // What nobody has judged keeps its name.
  if (!fd.valid()) {
    const int error = errno;
    PutBack(aside, path);
    return error;
  }
  const absl::StatusOr<bool> damaged = request.damaged(fd.get());
  *not_judged = damaged.status();
  if (!damaged.ok() || !*damaged) return PutBack(aside, path);
  if (const int error = Replace(request); error != 0) {
    PutBack(aside, path);
    return error;
  }
  return Unlink(aside);
}

int Housekeeping::Replace(SetAsideRequest& request) {
  const int error = request.replace != nullptr ? request.replace() : 0;
  return error == EEXIST ? 0 : error;
}

int Housekeeping::PutBack(const std::string& aside, const std::string& path) {
  // Where somebody has published again meanwhile, that file stands.
  if (linkat(root_fd_, aside.c_str(), root_fd_, path.c_str(), 0) != 0 && errno != EEXIST) {
    const int error = errno;
    NoteLeft(aside, error);
    return error;
  }
  return Unlink(aside);
}

int Housekeeping::Unlink(const std::string& aside) {
  if (unlinkat(root_fd_, aside.c_str(), 0) == 0) return 0;
  const int error = errno;
  NoteLeft(aside, error);
  return error;
}

void Housekeeping::NoteLeft(const std::string& aside, int error) {
  if (error == ENOENT) return;  // It is gone, or on a file system that is no longer the tier's.
  stats_.temporaries_left.Add();
  if (!left_quiet_.IsOver(Now())) return;
  spdlog::warn("temporary files are left behind: tier={} file={} errno={}", options_.name, aside,
               error);
}

}  // namespace kvstream::tier
