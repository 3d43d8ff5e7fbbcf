// The worker's side of a landing buffer, as the client sees it. Regions whose runs are short are
// filled through it: the daemon lands bytes in a part, the worker's own process scatters them.
// client/cuda/landing_buffer.h is the implementation.
//
// A copy of an operation may touch the caller's memory although the daemon has ended the operation:
// a deadline does not wait for a scatter. So the client tells outcomes through AfterCopies.
//
// Thread rule: OnRead and OnStore from the threads that begin operations, everything else from the
// client's threads, and none may block but Detach. Events of one session come in order.
// Ownership: shared with the client until the client's end.
#pragma once

#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "kvstream/v1/kvstream.pb.h"

namespace kvstream {

class LandingHandler {
 public:
  virtual ~LandingHandler() = default;

  // An operation that the daemon has not heard of yet: where its chunks lie.
  virtual void OnRead(const v1::ReadStep& step) = 0;
  virtual void OnStore(const v1::Store& store) = 0;

  // Bytes to scatter, and to gather. The handler answers with Client::SendScattered and
  // SendGathered, once for each, whether or not the operation has ended.
  virtual void OnLanded(const v1::Landed& landed) = 0;
  virtual void OnGather(const v1::Gather& gather) = 0;

  // Calls `then` once no copy of the operation that came before this call runs any more: at once,
  // or later on a thread of the handler. Calls for one operation keep their order. `ended`: this is
  // its end, and nothing is copied for it from now on.
  virtual void AfterCopies(uint64_t operation_id, bool ended, absl::AnyInvocable<void()> then) = 0;

  // The client's end: waits for every copy and every `then`, and calls the client no more.
  // AfterCopies still works. `let_go`: the daemon has closed what it had opened, so the landing
  // memory may be freed.
  virtual void Detach(bool let_go) = 0;
};

}  // namespace kvstream
