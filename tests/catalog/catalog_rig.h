// Entries and folders of the catalog's tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "server/base/unique_fd.h"
#include "server/store/catalog_log.h"
#include "server/store/chunk_format.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::catalog {

class CatalogRig : public testing::Test {
 protected:
  using What = store::CatalogEntry::What;

  static store::NodeId NodeOf(uint8_t number) { return store::NodeId{{number, 0xff}}; }
  static KeyDigest KeyOf(uint64_t number) {
    KeyDigest key;
    for (size_t i = 0; i < 8; ++i) key.bytes[i] = static_cast<uint8_t>(number >> (8 * i));
    return key;
  }
  static uint64_t NumberOf(const KeyDigest& key) {
    uint64_t number = 0;
    for (size_t i = 0; i < 8; ++i) number |= uint64_t{key.bytes[i]} << (8 * i);
    return number;
  }
  // A frame that says these files are there, and those are gone.
  static std::string FrameOf(uint8_t node, const std::vector<uint64_t>& files,
                             const std::vector<uint64_t>& gone = {}) {
    constexpr ChunkShape kShape{4096, 4096};
    store::CatalogFrame frame;
    for (const uint64_t number : files) {
      const std::vector<uint64_t> checksums = {number};
      frame.Add({What::kFile,
                 {KeyOf(number),
                  SiblingsId{number},
                  {},
                  kShape,
                  store::ContentIdOf(kShape, checksums),
                  checksums},
                 {}});
    }
    for (const uint64_t number : gone) {
      store::CatalogEntry entry{What::kGone, {}, {}};
      entry.chunk.key = KeyOf(number);
      frame.Add(entry);
    }
    return frame.Take(NodeOf(node));
  }
  UniqueFd Root() const {
    return UniqueFd(open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  std::vector<std::string> NamesIn(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(Path(folder))) {
      names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  std::filesystem::path Path(const std::string& below) const {
    return std::filesystem::path(folder_.path()) / below;
  }

  tier::TemporaryFolder folder_;
};

}  // namespace kvstream::catalog
