#include "server/engine/catalog_run.h"

#include <pthread.h>

#include <utility>

#include "server/base/clock.h"
#include "server/catalog/node_id.h"

namespace kvstream::engine {

void CatalogRun::Run() {
  pthread_setname_np(pthread_self(), "catalog");
  bool more = true;
  while (more) {
    more = WaitForLook();
    // The last one says what waits, and hears nothing that anybody would take.
    absl::Status status = more ? Look() : SayAll();
    MutexLock lock(&mu_);
    status_ = std::move(status);
    looked_at_ = Now();
  }
  MutexLock lock(&mu_);
  ended_ = true;
  changed_.NotifyAll();
}

bool CatalogRun::WaitForLook() {
  MutexLock lock(&mu_);
  if (looked_at_ == 0) return !stopped_;
  const TimeNs next = looked_at_ + plan_.options.every;
  while (!stopped_ && changed_.WaitUntil(&mu_, next)) {
  }
  return !stopped_;
}

absl::Status CatalogRun::Look() {
  if (catalog_ == nullptr) {
    const auto node = catalog::LoadNodeId(plan_.home.get());
    if (!node.ok()) return node.status();
    node_ = *node;
    auto opened = catalog::SharedCatalog::Open(plan_.root.fd.get(), node_, plan_.options.times,
                                               counts_.get());
    if (!opened.ok()) return opened.status();
    catalog_ = *std::move(opened);
  }
  // What cannot be said keeps nobody from hearing.
  const absl::Status said = SayAll();
  const absl::Status heard =
      catalog_->Hear(Now(), [this](const store::CatalogEntry& entry) { Hear(entry); });
  Deliver();
  return said.ok() ? heard : said;
}

absl::Status CatalogRun::SayAll() {
  if (catalog_ == nullptr) return absl::OkStatus();
  while (true) {
    if (unsaid_bytes_.empty()) {
      MutexLock lock(&mu_);
      if (!unsaid_.empty()) {
        unsaid_bytes_ = unsaid_.front().Take(node_);
        unsaid_.pop_front();
      }
    }
    if (absl::Status said = catalog_->Say(unsaid_bytes_, Now()); !said.ok()) return said;
    if (std::exchange(unsaid_bytes_, {}).empty()) return absl::OkStatus();
  }
}

void CatalogRun::Hear(const store::CatalogEntry& entry) {
  switch (entry.what) {
    case store::CatalogEntry::What::kFile:
      heard_.files.push_back(
          {.key = entry.chunk.key,
           .siblings = entry.chunk.siblings,
           .name_space = entry.chunk.name_space,
           .shape = entry.chunk.shape,
           .content = entry.chunk.content,
           .checksums = {entry.chunk.checksums.begin(), entry.chunk.checksums.end()},
           .before = entry.before,
           .unused_seconds = 0});
      break;
    case store::CatalogEntry::What::kGone:
      // It is told apart from a file of the same name that comes later, or went before.
      if (!heard_.files.empty()) Deliver();
      heard_.gone.push_back(entry.chunk.key);
      break;
    case store::CatalogEntry::What::kUsed:
      heard_.used.push_back(entry.chunk.siblings);
      break;
  }
  if (heard_.files.size() + heard_.gone.size() + heard_.used.size() >= kHintsAtOnce) Deliver();
}

void CatalogRun::Deliver() {
  HintsHeard heard = std::exchange(heard_, {});
  if (heard.files.empty() && heard.gone.empty() && heard.used.empty()) return;
  heard.tier = plan_.tier;
  heard.mount = plan_.root.mount;
  heard.run = shared_from_this();
  MutexLock lock(&mu_);
  while (!stopped_ && untaken_ == kUntakenMax) changed_.Wait(&mu_);
  if (stopped_) return;
  untaken_ += 1;
  poster_->Post(std::move(heard));
}

void CatalogRun::Say(store::CatalogFrame frame) {
  MutexLock lock(&mu_);
  unsaid_.push_back(std::move(frame));
}

size_t CatalogRun::unsaid() {
  MutexLock lock(&mu_);
  return unsaid_.size();
}

void CatalogRun::Taken() {
  MutexLock lock(&mu_);
  untaken_ -= 1;
  changed_.NotifyAll();
}

absl::Status CatalogRun::status() {
  MutexLock lock(&mu_);
  return status_;
}

TimeNs CatalogRun::looked_at() {
  MutexLock lock(&mu_);
  return looked_at_;
}

void CatalogRun::Cancel() {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
}

void CatalogRun::Stop(TimeNs deadline) {
  MutexLock lock(&mu_);
  stopped_ = true;
  changed_.NotifyAll();
  while (!ended_ && changed_.WaitUntil(&mu_, deadline)) {
  }
  poster_ = nullptr;
}

}  // namespace kvstream::engine
