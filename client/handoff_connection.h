// The client's end of the handoff socket (kvstream.v1, handoff.proto): passes memory as file
// descriptors, and is the session's life line. The daemon ends the session when it closes, and
// closes its own side only after it has stopped touching the session's memory.
//
// Thread rule: Call and HalfClose from any thread. One thread of its own reads; `on_end` runs on it
// once, when the daemon has closed its side, and must not destroy the connection.
// Ownership: owns the socket and the thread.
// Errors: UNAVAILABLE when the daemon is not there or gone, DEADLINE_EXCEEDED when it does not
// answer, otherwise what it answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/monotonic_condition.h"
#include "client/owned_fd.h"
#include "kvstream/v1/handoff.pb.h"

namespace kvstream {

class HandoffConnection {
 public:
  struct Answer {
    v1::HandoffReply reply;
    // Invalid when none rode on the packet.
    OwnedFd fd;
  };

  // Connects and takes the daemon's Welcome.
  static absl::StatusOr<std::unique_ptr<HandoffConnection>> Connect(const std::string& path,
                                                                    absl::Duration timeout);

  HandoffConnection(const HandoffConnection&) = delete;
  HandoffConnection& operator=(const HandoffConnection&) = delete;
  // Closes the socket, whether or not the daemon has closed its side.
  ~HandoffConnection() { Stop(); }

  const v1::Welcome& welcome() const { return welcome_; }

  // Begins to read. Once, before the first Call.
  void Start(std::function<void()> on_end);
  // Ends the reading: on_end runs no more. Idempotent. REQUIRES: no Call is waiting.
  void Stop();

  // One request and its answer; `fd`, unless -1, rides on the request and stays the caller's. The
  // request gets its id here. After DEADLINE_EXCEEDED the request may have been served: what it
  // made belongs to the session and ends with it.
  absl::StatusOr<Answer> Call(v1::HandoffRequest request, int fd, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Tells the daemon that the session is over. Its own side closes when it has let go.
  void HalfClose();

  // True once the daemon has closed its side, waiting for at most `timeout`.
  bool WaitClosed(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    bool answered = false;
    Answer answer;
  };

  HandoffConnection(OwnedFd socket, OwnedFd stop, std::string path);
  absl::Status TakeWelcome(std::chrono::steady_clock::time_point deadline);

  // The rest runs on the reading thread.
  void Run(const std::function<void()>& on_end);
  void Deliver(Answer answer) ABSL_LOCKS_EXCLUDED(mu_);

  const OwnedFd socket_;
  // An eventfd that ends the thread.
  const OwnedFd stop_;
  const std::string path_;
  v1::Welcome welcome_;

  mutable absl::Mutex mu_;
  mutable MonotonicCondition changed_;
  uint64_t last_request_id_ ABSL_GUARDED_BY(mu_) = 0;
  // Owned by the threads that wait in Call.
  absl::flat_hash_map<uint64_t, Waiting*> waiting_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace kvstream
