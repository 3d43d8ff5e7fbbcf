#include "server/tier/paths.h"

#include <sys/stat.h>

#include <cerrno>

#include "server/base/random.h"
#include "server/base/types.h"

namespace kvstream::tier {

std::string RandomSibling(std::string_view path, std::string_view prefix) {
  // npos + 1 is 0: a name without a folder has siblings without one.
  std::string name(path.substr(0, path.rfind('/') + 1));
  name.append(prefix).append(ToHex(Digest128<struct SiblingTag>{RandomBytes16()}));
  return name;
}

int MakeFolders(int root_fd, const std::string& path) {
  for (size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    if (mkdirat(root_fd, folder.c_str(), 0755) != 0 && errno != EEXIST) return errno;
  }
  return 0;
}

}  // namespace kvstream::tier
