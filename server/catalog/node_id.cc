#include "server/catalog/node_id.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string>

#include "server/base/errno_status.h"
#include "server/base/random.h"
#include "server/base/unique_fd.h"
#include "server/catalog/folder.h"
#include "server/catalog/node_log.h"

namespace kvstream::catalog {
namespace {

// NOT_FOUND: there is none.
absl::StatusOr<store::NodeId> Read(int home_fd) {
  const UniqueFd fd(openat(home_fd, kNodeIdPath, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "open", kNodeIdPath);
  std::string text(64, '\0');
  const ssize_t n = read(fd.get(), text.data(), text.size());
  if (n < 0) return ErrnoStatus(errno, "read", kNodeIdPath);
  text.resize(static_cast<size_t>(n));
  if (text.ends_with('\n')) text.pop_back();
  const std::optional<LogName> name = ParseLogName(text + ".0000000000000000.log");
  if (name.has_value()) return name->node;
  return absl::DataLossError(std::string(kNodeIdPath) + " does not hold 32 hexadecimal digits");
}

}  // namespace

absl::StatusOr<store::NodeId> LoadNodeId(int home_fd) {
  auto node = Read(home_fd);
  if (!absl::IsNotFound(node.status())) return node;
  (void)mkdirat(home_fd, "v1", 0777);
  const std::string temporary =
      std::string("v1/.tmp-node-") + ToHex(store::NodeId{RandomBytes16()});
  const UniqueFd fd(openat(home_fd, temporary.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, "create", temporary);
  absl::Status status =
      WriteAt(fd.get(), ToHex(store::NodeId{RandomBytes16()}) + "\n", 0, temporary);
  // Else a crash might leave an empty one.
  if (status.ok() && fdatasync(fd.get()) != 0) status = ErrnoStatus(errno, "fdatasync", temporary);
  if (status.ok() && linkat(home_fd, temporary.c_str(), home_fd, kNodeIdPath, 0) != 0 &&
      errno != EEXIST) {
    status = ErrnoStatus(errno, "link", kNodeIdPath);
  }
  (void)unlinkat(home_fd, temporary.c_str(), 0);
  if (!status.ok()) return status;
  return Read(home_fd);
}

}  // namespace kvstream::catalog
