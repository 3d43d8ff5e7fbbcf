// Writes one index snapshot, in the pieces that come, under a temporary name, and gives it the
// snapshot's name when it is whole.
//
// Thread rule: Run on a thread of its own, which may hang with the file system; all else from any
// thread, never blocking on files. Held by shared_ptr: whoever lets go of one that hangs leaves it
// to its thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/base/mutex.h"
#include "server/base/types.h"
#include "server/base/unique_fd.h"

namespace kvstream::engine {

class SnapshotRun {
 public:
  // `path` below `root`; the folder is made where it is missing.
  SnapshotRun(UniqueFd root, std::string path) : root_(std::move(root)), path_(std::move(path)) {}

  void Run();

  // The next piece of the body.
  void Append(std::string piece);
  // There are no more. The header is the file's first store::kSnapshotHeaderBytes.
  void Finish(std::string header);
  // It is not wanted any more.
  void Cancel();
  // Bytes that wait to be written.
  size_t unwritten();
  bool ended();
  // Of one that has ended.
  absl::Status status();
  // Waits for its end until `deadline`; whether it has ended.
  bool WaitEnded(TimeNs deadline);

 private:
  absl::Status Write(const std::string& temporary);
  // Two runs may write at once, one of them cancelled.
  std::string TemporaryName() const;
  bool cancelled();
  // The next piece; empty: there are no more. False: cancelled.
  bool NextPiece(std::string* piece);

  const UniqueFd root_;
  const std::string path_;

  Mutex mu_;
  CondVar changed_;
  std::deque<std::string> pieces_ ABSL_GUARDED_BY(mu_);
  size_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;
  std::string header_ ABSL_GUARDED_BY(mu_);  // Not empty: there are no more pieces.
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::engine
