#include "server/fsck/tree_check.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/base/errno_status.h"
#include "server/base/unique_fd.h"
#include "server/store/chunk_format.h"
#include "server/store/index_snapshot.h"
#include "server/tier/judge.h"
#include "server/tier/walk.h"

namespace kvstream::fsck {
namespace {

constexpr char kSnapshotFolder[] = "v1/index";
// A daemon reads no larger ones.
constexpr uint64_t kSnapshotBytesMax = 4 * kGiB;

using OnBad = absl::FunctionRef<void(const std::string& path, const absl::Status& why)>;

absl::StatusOr<std::string> ReadUpTo(int fd, uint64_t bytes_max, const std::string& path) {
  std::string bytes(bytes_max, '\0');
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = pread(fd, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", path);
    if (n == 0) break;
    at += static_cast<size_t>(n);
  }
  bytes.resize(at);
  return bytes;
}

// Of v1/<32 hex>/...
NamespaceId NamespaceOfPath(const std::string& path) {
  NamespaceId id;
  for (size_t i = 0; i < id.bytes.size(); ++i) {
    id.bytes[i] = static_cast<uint8_t>(std::stoul(path.substr(3 + 2 * i, 2), nullptr, 16));
  }
  return id;
}

class TreeCheck {
 public:
  TreeCheck(int root_fd, const CheckOptions& options, OnBad on_bad)
      : root_fd_(root_fd), options_(options), on_bad_(on_bad) {}

  absl::StatusOr<TreeReport> Run() {
    struct stat v1 {};
    if (fstatat(root_fd_, "v1", &v1, AT_SYMLINK_NOFOLLOW) != 0) {
      return ErrnoStatus(errno, "stat", "v1");
    }
    tier::WalkCounts counts;
    const absl::Status walked = tier::WalkChunks(
        root_fd_, [] { return true; },
        [this](const std::string& path) {
          CheckChunk(path);
          return true;
        },
        [](int, const char*) {}, &counts);
    if (!walked.ok()) return walked;
    report_.foreign += counts.foreign;
    report_.unreadable += counts.unreadable;
    report_.temporary = counts.temporary;
    CheckSnapshots();
    return report_;
  }

 private:
  void CheckChunk(const std::string& path) {
    const UniqueFd fd = tier::OpenToJudge(root_fd_, path, /*direct=*/false);
    struct stat file {};
    if (!fd.valid() || fstat(fd.get(), &file) != 0) {
      if (errno == ENOENT) return;  // It has gone meanwhile.
      return NoteUnreadable(path, ErrnoStatus(errno, "open", path));
    }
    const auto bytes = static_cast<uint64_t>(file.st_size);
    const auto header =
        options_.headers_only ? ReadHeader(fd.get(), path, bytes) : ReadAll(fd.get(), path);
    absl::Status status = header.status();
    if (absl::IsUnimplemented(status)) {
      report_.foreign += 1;
      return;
    }
    const NamespaceId folder = NamespaceOfPath(path);
    if (header.ok() && store::NamespaceOf(*header) != folder) {
      status = absl::DataLossError("the file is of another namespace than its folder");
    }
    if (!status.ok() && !absl::IsDataLoss(status)) return NoteUnreadable(path, status);
    for (NamespaceFiles* files : {&report_.namespaces[folder], &report_.all}) {
      files->files += 1;
      files->bytes += bytes;
      files->damaged += status.ok() ? 0 : 1;
    }
    if (!status.ok()) on_bad_(path, status);
  }

  static absl::StatusOr<store::ChunkHeader> ReadAll(int fd, const std::string& path) {
    return store::ReadChunkFile(fd, store::KeyOfPath(path),
                                [](std::span<const std::byte>) { return true; });
  }

  static absl::StatusOr<store::ChunkHeader> ReadHeader(int fd, const std::string& path,
                                                       uint64_t bytes) {
    const auto block = ReadUpTo(fd, kHeaderBytes, path);
    if (!block.ok()) return block.status();
    if (block->size() < kHeaderBytes) return absl::DataLossError("the file has no whole header");
    return store::DecodeHeaderOf(store::KeyOfPath(path), std::as_bytes(std::span(*block)), bytes);
  }

  void CheckSnapshots() {
    const int fd =
        openat(root_fd_, kSnapshotFolder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return;  // No daemon has stopped here.
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(fd < 0 ? nullptr : fdopendir(fd), closedir);
    if (folder == nullptr) {
      const absl::Status status = ErrnoStatus(errno, "open", kSnapshotFolder);
      if (fd >= 0) close(fd);
      return NoteUnreadable(kSnapshotFolder, status);
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(folder.get())) {
      if (std::string_view(entry->d_name).ends_with(".kvindex")) names.emplace_back(entry->d_name);
    }
    if (errno != 0) NoteUnreadable(kSnapshotFolder, ErrnoStatus(errno, "read", kSnapshotFolder));
    std::ranges::sort(names);
    for (const std::string& name : names) {
      const std::string path = std::string(kSnapshotFolder) + "/" + name;
      report_.snapshots += 1;
      const absl::Status status = CheckSnapshot(path);
      if (status.ok()) continue;
      report_.snapshots_unusable += 1;
      on_bad_(path, status);
    }
  }

  absl::Status CheckSnapshot(const std::string& path) const {
    const UniqueFd fd(
        openat(root_fd_, path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat file {};
    if (!fd.valid() || fstat(fd.get(), &file) != 0) return ErrnoStatus(errno, "open", path);
    const auto bytes = static_cast<uint64_t>(file.st_size);
    if (!S_ISREG(file.st_mode) || bytes > kSnapshotBytesMax) {
      return absl::DataLossError(path + " is no snapshot");
    }
    auto content = ReadUpTo(fd.get(), bytes, path);
    if (!content.ok()) return content.status();
    return store::SnapshotReader::Open(*std::move(content)).status();
  }

  void NoteUnreadable(const std::string& path, const absl::Status& why) {
    report_.unreadable += 1;
    on_bad_(path, why);
  }

  const int root_fd_;
  const CheckOptions options_;
  const OnBad on_bad_;
  TreeReport report_;
};

}  // namespace

absl::StatusOr<TreeReport> CheckTree(int root_fd, const CheckOptions& options, OnBad on_bad) {
  return TreeCheck(root_fd, options, on_bad).Run();
}

}  // namespace kvstream::fsck
