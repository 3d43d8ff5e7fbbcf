#include "server/catalog/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "server/base/errno_status.h"

namespace kvstream::catalog {

absl::StatusOr<Folder> Folder::Open(int root_fd, const std::string& path, Counter* calls) {
  for (size_t end = path.find('/');; end = path.find('/', end + 1)) {
    calls->Add();
    if (mkdirat(root_fd, path.substr(0, end).c_str(), 0777) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, "make", path);
    }
    if (end == std::string::npos) break;
  }
  calls->Add();
  UniqueFd fd(openat(root_fd, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, "open", path);
  return Folder(std::move(fd), path, calls);
}

absl::StatusOr<std::vector<std::string>> Folder::List() const {
  calls_->Add();
  UniqueFd fd(openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "open", path_);
  DIR* const folder = fdopendir(fd.get());
  if (folder == nullptr) return ErrnoStatus(errno, "list", path_);
  (void)fd.Release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* const entry = readdir(folder)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    errno = 0;
  }
  const int error = errno;
  closedir(folder);
  if (error != 0) return ErrnoStatus(error, "list", path_);
  std::ranges::sort(names);
  return names;
}

absl::StatusOr<std::string> Folder::Read(const std::string& name, uint64_t offset,
                                         uint64_t bytes_max) const {
  // Opened anew each time, since a file system may show what others append to those alone who open
  // the file after that.
  calls_->Add(2);
  const UniqueFd fd(
      openat(fd_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "open", name);
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) return ErrnoStatus(errno, "stat", name);
  if (!S_ISREG(file.st_mode)) return absl::DataLossError(name + " is no file");
  const auto size = static_cast<uint64_t>(file.st_size);
  std::string bytes(std::min(bytes_max, size - std::min(size, offset)), '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t n =
        pread(fd.get(), bytes.data() + got, bytes.size() - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", name);
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  bytes.resize(got);
  return bytes;
}

absl::StatusOr<UniqueFd> Folder::Create(const std::string& name) const {
  calls_->Add();
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd fd(openat(fd_.get(), name.c_str(), flags, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, "create", name);
  return fd;
}

absl::StatusOr<int64_t> Folder::ModifiedAt(const std::string& name) const {
  calls_->Add();
  struct stat file {};
  if (fstatat(fd_.get(), name.c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoStatus(errno, "stat", name);
  }
  return static_cast<int64_t>(file.st_mtim.tv_sec);
}

absl::Status Folder::Move(const std::string& from, const std::string& to) const {
  calls_->Add();
  if (renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) != 0) {
    return ErrnoStatus(errno, "rename", from);
  }
  return absl::OkStatus();
}

absl::Status Folder::Rename(const std::string& from, const std::string& to) const {
  calls_->Add(2);
  if (linkat(fd_.get(), from.c_str(), fd_.get(), to.c_str(), 0) != 0) {
    return ErrnoStatus(errno, "link", to);
  }
  return Remove(from);
}

absl::Status Folder::Remove(const std::string& name) const {
  calls_->Add();
  if (unlinkat(fd_.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, "remove", name);
  }
  return absl::OkStatus();
}

absl::Status Flush(int fd, std::string_view name) {
  if (fdatasync(fd) != 0) return ErrnoStatus(errno, "flush", name);
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, std::string_view bytes, uint64_t offset, std::string_view name) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write", name);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace kvstream::catalog
