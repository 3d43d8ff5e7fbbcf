// Takes files of a tier out of their names, and measures its room, with plain system calls on a
// thread of its own: they may take long.
//
// Thread rule: SetAside and Measure from the tier's caller; the work is on its own thread.
// Ownership: must not be destroyed before Stop has returned true.
#pragma once

#include <deque>
#include <string>
#include <thread>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "server/base/mutex.h"
#include "server/base/quiet_period.h"
#include "server/tier/lane_parts.h"
#include "server/tier/outbox.h"
#include "server/tier/tier.h"

namespace kvstream::tier {

class Housekeeping {
 public:
  // `forget` is called with each path whose name was taken away, before its completion.
  Housekeeping(const LaneParts& parts, absl::AnyInvocable<void(const std::string&)> forget);
  Housekeeping(const Housekeeping&) = delete;
  Housekeeping& operator=(const Housekeeping&) = delete;
  // REQUIRES: Stop has returned true.
  ~Housekeeping();

  void SetAside(SetAsideRequest request);
  void Measure(Ticket ticket);
  // Tier::Stop. After false the sink is not called any more.
  [[nodiscard]] bool Stop(TimeNs deadline);

 private:
  using Request = std::variant<SetAsideRequest, Ticket>;  // A Ticket: measure.

  void Accept(Request request);
  void Run();
  // Waits for the next request. False when there will be none.
  bool Next(Request* request);
  void Do(SetAsideRequest& request, Completion* completion);
  void Do(Ticket measure, Completion* completion) const;
  // These return 0 or an errno.
  int TakeAside(SetAsideRequest& request, absl::Status* not_judged);
  static int Replace(SetAsideRequest& request);
  int PutBack(const std::string& aside, const std::string& path);
  int Unlink(const std::string& aside);
  void NoteLeft(const std::string& aside, int error);

  const TierOptions& options_;
  const int root_fd_;
  const bool direct_;
  TierStats& stats_;
  absl::AnyInvocable<void(const std::string&)> forget_;
  Outbox outbox_;
  QuietPeriod left_quiet_;  // Of the thread.

  Mutex mu_;
  CondVar changed_;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mu_);
  bool exit_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace kvstream::tier
