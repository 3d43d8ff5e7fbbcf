// What the nodes that share a tier know of each other's files, without a look at the tree.
//
// Each node appends to a log of its own (NodeLog). One node, the leader, follows all of those and
// copies their frames into one merged log, v1/catalog/merged/<number>.log, which the others follow:
// so a node looks at two folders and one file, however many nodes there are, and the leader at one
// file more for each node. Who makes the merged log with the next number leads; that is tried by
// whoever has seen nothing new in it for a while, and the leader writes signs of life. Two leaders
// at once, or none for a while, cost time alone: all that is said here is a hint.
//
// The leader also takes over the files of nodes that are gone (adoption.h).
//
// Thread rule: one thread, which may hang with the file system; the numbers any.
// Errors: as Folder; UNIMPLEMENTED: somebody writes a version that this build does not know.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/types.h"
#include "server/catalog/folder.h"
#include "server/catalog/log_reader.h"
#include "server/catalog/node_log.h"
#include "server/catalog/options.h"
#include "server/catalog/stats.h"
#include "server/store/catalog_log.h"

namespace kvstream::catalog {

// Hears what other nodes say; called in Hear and Adopt.
class CatalogListener {
 public:
  virtual ~CatalogListener() = default;
  // All that is there is told from now on, with what was told before: of what is not, by
  // OnAllTold, nobody says any more that it is there.
  virtual void OnTellingAll() = 0;
  virtual void OnAllTold() = 0;
  // Valid in the call.
  virtual void OnEntry(const store::CatalogEntry& entry) = 0;
  // A file of a node that is gone, which is this node's from now on.
  virtual void OnAdopted(const store::CatalogEntry& file) = 0;
};

class SharedCatalog {
 public:
  // `stats` outlives it. Where another node has taken this one's files it begins anew, and
  // `was_taken` says so.
  static absl::StatusOr<std::unique_ptr<SharedCatalog>> Open(int root_fd, const store::NodeId& node,
                                                             const CatalogTimes& times,
                                                             CatalogStats* stats, bool* was_taken);

  // Says the frames, which are this node's, to the others; a sign of life where there are none, now
  // and then. ABORTED: another node has taken this one's files meanwhile. It is to be opened anew.
  absl::Status Say(std::string_view frames, TimeNs now);
  // Hears what the others have said since the last time, and merges where this node leads.
  absl::Status Hear(TimeNs now, CatalogListener* listener);
  // Takes over the files of nodes that are gone, and says so; now and then, where this node leads.
  absl::Status Adopt(TimeNs now, CatalogListener* listener);

 private:
  // Below this a merged log is not written anew.
  static constexpr uint64_t kRotateBytesMin = 4 * kMiB;
  // Who follows an older one has the rest of it to read.
  static constexpr TimeNs kOldStaysFor = 60 * kSecond;
  // Frames that are copied at once.
  static constexpr size_t kCopyBytes = kMiB;

  SharedCatalog(Folder nodes, Folder merged, const store::NodeId& node, const CatalogTimes& times,
                CatalogStats* stats);

  absl::Status Follow(TimeNs now, CatalogListener* listener);
  // Tries to make the next merged log.
  absl::Status Lead(TimeNs now, CatalogListener* listener);
  absl::Status Merge(TimeNs now, CatalogListener* listener);
  // What a node has said since the last time, in all of its logs; what is not in the merged log yet
  // stays in `frames`.
  absl::Status CopyNode(const std::vector<LogName>& logs, std::string* frames, TimeNs now,
                        CatalogListener* listener);
  absl::Status CopyNew(LogReader& log, std::string* frames, TimeNs now, CatalogListener* listener);
  // What a node's log says is there, without what is gone: so the order in which the logs of
  // several nodes are read for the first time matters to nobody.
  absl::Status CopyFiles(LogReader& log, std::string* frames, TimeNs now,
                         CatalogListener* listener);
  absl::Status AppendMerged(std::string_view frames, TimeNs now);
  // The number of the newest merged log; 0: there is none.
  absl::StatusOr<uint64_t> NewestMerged() const;
  // `is_old`: it was said before anybody listened.
  void OnFrame(const store::NodeId& node, std::string_view frame, bool is_old,
               CatalogListener* listener) const;
  // Older ones say nothing that the one of this node does not.
  void RemoveOlderMerged();
  void StopLeading();

  const Folder nodes_;
  const Folder merged_;
  const store::NodeId node_;
  const CatalogTimes times_;
  CatalogStats* const stats_;
  std::unique_ptr<NodeLog> own_;
  TimeNs said_at_ = 0;
  TimeNs looked_for_gone_at_ = 0;

  // Of the merged log that is followed, or led.
  uint64_t number_ = 0;
  std::unique_ptr<LogReader> followed_;
  // What there was when it was begun has been read, or copied.
  bool all_told_ = false;
  TimeNs grew_at_ = 0;

  bool leads_ = false;
  bool cleaned_ = false;  // Merged logs before this one are gone.
  bool missed_ = false;   // A log of a node was gone before it was read.
  TimeNs led_at_ = 0;
  UniqueFd merged_fd_;
  uint64_t merged_bytes_ = 0;
  bool append_failed_ = false;
  TimeNs merged_at_ = 0;
  // By node: the last of its logs that was read.
  std::map<store::NodeId, LogReader> logs_;
};

}  // namespace kvstream::catalog
