// Operations of a session: a step that loads, a store. Each is made by Client, told the daemon's
// events, and ended exactly once.
//
// An operation that has not ended may still touch the memory that it names: not a deadline, not a
// broken stream, only the end says that the memory is free. The end is the daemon's Quiesced, or,
// when the session is lost, UNAVAILABLE once the handoff connection has reported end of file.
//
// Thread rule: any thread may wait and ask. Callbacks run on the client's own threads, one at a
// time for each operation: they must not block, and must not call Client's blocking methods.
// Ownership: shared by the caller and, until it has ended, the client. It may outlive the client.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/monotonic_condition.h"
#include "kvstream/v1/kvstream.pb.h"

namespace kvstream {

class Operation {
 public:
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  uint64_t id() const { return id_; }

  // True once ended, waiting for it for at most `timeout`. False leaves the operation running and
  // its memory in use.
  bool WaitEnded(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);

  // OK when everything succeeded, otherwise the first failure. REQUIRES: ended.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

  // For Client: one event of this operation, other than Quiesced.
  virtual void OnEvent(const v1::Event& event) = 0;
  // For Client: the end.
  virtual void End(const absl::Status& status) = 0;

 protected:
  explicit Operation(uint64_t id) : id_(id) {}
  void SetEnded(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  const uint64_t id_;
  mutable absl::Mutex mu_;
  // Of whatever somebody may wait for.
  mutable MonotonicCondition changed_;

 private:
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// Both may be empty.
struct ReadCallbacks {
  // A request's outcome: its destinations are no longer touched.
  std::function<void(const v1::RequestDone&)> on_request_done;
  // The end, after every on_request_done.
  std::function<void(const absl::Status&)> on_ended;
};

class ReadOperation final : public Operation {
 public:
  // `step` with its operation_id.
  ReadOperation(const v1::ReadStep& step, ReadCallbacks callbacks);

  // The outcomes, in the step's order of requests. A request that ended with the operation, without
  // an outcome of its own, has the operation's code and no valid chunk. REQUIRES: ended.
  std::vector<v1::RequestDone> results() const ABSL_LOCKS_EXCLUDED(mu_);

  void OnEvent(const v1::Event& event) override ABSL_LOCKS_EXCLUDED(mu_);
  void End(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const ReadCallbacks callbacks_;
  std::vector<v1::RequestDone> results_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> done_ ABSL_GUARDED_BY(mu_);
};

class StoreOperation final : public Operation {
 public:
  struct Chunk {
    // UNAVAILABLE until an outcome is known, and for good when the session was lost before. After
    // a failed publication, the reason.
    v1::Code code = v1::UNAVAILABLE;
    // The key was present: nothing was copied.
    bool existed = false;
  };

  // `store` with its operation_id.
  explicit StoreOperation(const v1::Store& store);

  // True once the daemon no longer reads the source memory, waiting for at most `timeout`. The
  // operation may end later, when it wants to know what is durable.
  bool WaitReleased(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);

  // As far as known; all outcomes once released.
  std::vector<Chunk> chunks() const ABSL_LOCKS_EXCLUDED(mu_);

  void OnEvent(const v1::Event& event) override ABSL_LOCKS_EXCLUDED(mu_);
  void End(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::vector<Chunk> chunks_ ABSL_GUARDED_BY(mu_);
  bool released_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvstream
