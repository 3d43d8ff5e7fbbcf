#include "server/tier/walk.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/errno_status.h"
#include "server/base/unique_fd.h"

namespace kvstream::tier {
namespace {

constexpr std::string_view kTop = "v1";
// Below it, ours and no chunks: the index snapshots, what nodes tell each other, and which node
// this is.
constexpr std::string_view kIndexFolder = "index";
constexpr std::string_view kCatalogFolder = "catalog";
constexpr std::string_view kNodeFile = "node";
constexpr std::string_view kSuffix = ".kv";
constexpr size_t kDigestDigits = 32;
constexpr size_t kFolderDigits = 2;
// Of namespaces, of the first and of the second byte; files are below.
constexpr int kFolderLevels = 3;

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

enum class EntryKind : uint8_t { kFolder, kFile, kOther };

bool IsHex(std::string_view name, size_t digits) {
  return name.size() == digits && std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsTemporary(std::string_view name) {
  return name.starts_with(".tmp-") || name.starts_with(".aside-") || name.starts_with(".probe-");
}

// `path` ends with the two folders that a file of this name lies in.
bool IsChunkName(std::string_view name, std::string_view path) {
  if (!name.ends_with(kSuffix) || !IsHex(name.substr(0, kDigestDigits), kDigestDigits) ||
      name.size() != kDigestDigits + kSuffix.size()) {
    return false;
  }
  const std::string_view folders = path.substr(path.size() - 2 * kFolderDigits - 1);
  return folders.substr(0, kFolderDigits) == name.substr(0, kFolderDigits) &&
         folders.substr(kFolderDigits + 1) == name.substr(kFolderDigits, kFolderDigits);
}

// Null, with errno set. `fd` is taken over.
Folder OpenFolder(int parent_fd, const char* name) {
  UniqueFd fd(openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return nullptr;
  Folder folder(fdopendir(fd.get()));
  if (folder != nullptr) (void)fd.Release();
  return folder;
}

EntryKind EntryKindOf(int folder_fd, const dirent& entry) {
  if (entry.d_type == DT_REG) return EntryKind::kFile;
  if (entry.d_type == DT_DIR) return EntryKind::kFolder;
  if (entry.d_type != DT_UNKNOWN) return EntryKind::kOther;
  struct stat file {};
  if (fstatat(folder_fd, entry.d_name, &file, AT_SYMLINK_NOFOLLOW) != 0) return EntryKind::kOther;
  return S_ISREG(file.st_mode)   ? EntryKind::kFile
         : S_ISDIR(file.st_mode) ? EntryKind::kFolder
                                 : EntryKind::kOther;
}

class Walk {
 public:
  Walk(absl::FunctionRef<bool()> enter, absl::FunctionRef<bool(const std::string&)> visit,
       absl::FunctionRef<void(int, const char*)> temporary, WalkCounts* counts)
      : enter_(enter), visit_(visit), temporary_(temporary), counts_(*counts) {}

  // False: the visitor has had enough.
  bool Descend(DIR* folder, const std::string& path, int level) {
    if (!enter_()) return false;
    // Files are visited once all names of the folder are known: a visitor that replaces one would
    // else meet its name again.
    std::vector<std::string> files;
    const bool more = ReadNames(folder, path, level, &files);
    if (!more) return false;
    std::sort(files.begin(), files.end());
    return std::all_of(files.begin(), files.end(),
                       [&](const std::string& name) { return visit_(path + "/" + name); });
  }

 private:
  bool ReadNames(DIR* folder, const std::string& path, int level, std::vector<std::string>* files) {
    while (true) {
      errno = 0;
      const dirent* const entry = readdir(folder);
      if (entry == nullptr) {
        if (errno != 0) ++counts_.unreadable;
        return true;
      }
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      const EntryKind kind = EntryKindOf(dirfd(folder), *entry);
      if (level == 0 && kind == EntryKind::kFolder && name == kIndexFolder) {
        PassTemporaries(folder, entry->d_name);
      } else if (level == 0 && (name == kCatalogFolder || name == kNodeFile)) {
        continue;
      } else if (level < kFolderLevels) {
        if (kind != EntryKind::kFolder ||
            !IsHex(name, level == 0 ? kDigestDigits : kFolderDigits)) {
          Pass(folder, entry->d_name);
        } else if (!Enter(folder, entry->d_name, path + "/" + entry->d_name, level + 1)) {
          return false;
        }
      } else if (kind == EntryKind::kFile && IsChunkName(name, path)) {
        files->emplace_back(name);
      } else {
        Pass(folder, entry->d_name);
      }
    }
  }

  bool Enter(DIR* parent, const char* name, const std::string& path, int level) {
    const Folder folder = OpenFolder(dirfd(parent), name);
    if (folder != nullptr) return Descend(folder.get(), path, level);
    if (errno != ENOENT) ++counts_.unreadable;
    return true;
  }

  void Pass(DIR* folder, const char* name) {
    if (!IsTemporary(name)) {
      ++counts_.foreign;
      return;
    }
    ++counts_.temporary;
    temporary_(dirfd(folder), name);
  }

  // All else in this folder is ours, and no chunk.
  void PassTemporaries(DIR* parent, const char* name) {
    const Folder folder = OpenFolder(dirfd(parent), name);
    while (folder != nullptr) {
      const dirent* const entry = readdir(folder.get());
      if (entry == nullptr) return;
      if (IsTemporary(entry->d_name)) Pass(folder.get(), entry->d_name);
    }
  }

  const absl::FunctionRef<bool()> enter_;
  const absl::FunctionRef<bool(const std::string&)> visit_;
  const absl::FunctionRef<void(int, const char*)> temporary_;
  WalkCounts& counts_;
};

}  // namespace

absl::Status WalkChunks(int root_fd, absl::FunctionRef<bool()> enter,
                        absl::FunctionRef<bool(const std::string& path)> visit,
                        absl::FunctionRef<void(int folder_fd, const char* name)> temporary,
                        WalkCounts* counts) {
  const std::string top(kTop);
  const Folder folder = OpenFolder(root_fd, top.c_str());
  if (folder == nullptr) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, "open folder", top);
  }
  Walk(enter, visit, temporary, counts).Descend(folder.get(), top, 0);
  return absl::OkStatus();
}

}  // namespace kvstream::tier
