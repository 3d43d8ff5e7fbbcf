// Which session a token opens. The handoff server adds a token for each connection and takes it
// away when the connection ends; the session stream resolves the one in Hello.
//
// Thread rule: thread-safe; the mutex is held for a table operation only.
#pragma once

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/base/types.h"

namespace kvstream::rpc {

class SessionTokens {
 public:
  void Add(const std::string& token, SessionId session) {
    absl::MutexLock lock(&mu_);
    sessions_[token] = Entry{session};
  }

  void Remove(const std::string& token) {
    absl::MutexLock lock(&mu_);
    sessions_.erase(token);
  }

  // Takes the token away unless it was resolved. True when it did: no stream will come with it.
  bool RemoveUnused(const std::string& token) {
    absl::MutexLock lock(&mu_);
    const auto found = sessions_.find(token);
    if (found == sessions_.end() || found->second.used) return false;
    sessions_.erase(found);
    return true;
  }

  // Nothing when no open connection has the token.
  std::optional<SessionId> Resolve(const std::string& token) {
    absl::MutexLock lock(&mu_);
    const auto found = sessions_.find(token);
    if (found == sessions_.end()) return std::nullopt;
    found->second.used = true;
    return found->second.session;
  }

 private:
  struct Entry {
    SessionId session;
    bool used = false;
  };

  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Entry> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvstream::rpc
