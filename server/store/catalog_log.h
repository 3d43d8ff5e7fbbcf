// What the nodes that share a tier tell each other of the files that they have there: a log of
// frames, each with the node that says it. FORMAT.md has the bytes. What a log says is a hint: it
// may be old, and a file that it names may be gone, which is a miss for whoever reads it.
//
// Thread rule: each object one thread. Ownership: everything is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/store/chunk_index.h"

namespace kvstream::store {

// Drawn at random by a node once, for good.
using NodeId = Digest128<struct NodeTag>;

inline constexpr size_t kCatalogHeaderBytes = 64;
// The beginning of a log: who writes it, and which one of his it is.
struct CatalogHeader {
  NodeId writer;
  uint64_t number = 0;
};
std::string EncodeCatalogHeader(const CatalogHeader& header);
// DATA_LOSS: it is none. UNIMPLEMENTED: of a version that this build does not know.
absl::StatusOr<CatalogHeader> DecodeCatalogHeader(std::string_view bytes);

struct CatalogEntry {
  enum class What : uint8_t {
    // There is this file: all of `chunk`, and `before`.
    kFile,
    // There is no file of chunk.key any more.
    kGone,
    // chunk.siblings, and with them all before them in their prefix, were used.
    kUsed,
  };
  What what = What::kFile;
  // Its checksums lie in the frame, or with whoever gave it.
  ChunkFacts chunk;
  // What comes right before it in its prefix, as far as that is known.
  std::optional<SiblingsId> before;
};

class CatalogFrame {
 public:
  // REQUIRES: fewer than kFullBytes so far.
  void Add(const CatalogEntry& entry);
  bool empty() const { return body_.empty(); }
  bool full() const { return body_.size() >= kFullBytes; }

  // A frame of all that was added since the last call; one of nothing says that the node lives.
  std::string Take(const NodeId& node);

  // With the largest entry behind it a frame is well below kFrameBytesMax.
  static constexpr size_t kFullBytes = 256 * kKiB;

 private:
  uint32_t KindOf(const ChunkFacts& chunk);

  absl::flat_hash_map<std::pair<NamespaceId, std::pair<uint64_t, uint64_t>>, uint32_t> kinds_;
  std::string body_;
};

inline constexpr size_t kFrameBytesMax = 512 * kKiB;
// A frame of nothing has no more.
inline constexpr size_t kFrameHeaderBytes = 32;

enum class FrameState : uint8_t {
  kWhole,
  // More of it is to come.
  kUnfinished,
  kDamaged,
};
struct FrameSeen {
  FrameState state = FrameState::kUnfinished;
  NodeId node;
  // Of a whole one.
  size_t bytes = 0;
};
// What the log has here.
FrameSeen CheckFrame(std::string_view log);
// How far to go to what may be the next frame, behind one that is damaged.
size_t BytesToNextFrame(std::string_view log);
// REQUIRES: a whole frame. What is visited is valid in the call.
void ForEachEntry(std::string_view frame, absl::FunctionRef<void(const CatalogEntry& entry)> visit);

// The files that a log says are there at its end, in the order in which they came; `log` begins
// with the first frame. Returns where the last whole frame ends.
size_t ReadLiveFiles(std::string_view log, absl::FunctionRef<bool(const CatalogEntry& file)> visit);

}  // namespace kvstream::store
