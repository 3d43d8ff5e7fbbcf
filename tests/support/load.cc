#include "tests/support/load.h"

#include <random>
#include <utility>

namespace kvstream {

Load::Load(const std::string& socket) {
  for (uint64_t w = 0; w < 2; ++w) {
    threads_.emplace_back([this, socket, w] { Write(socket, (w + 1) << 32); });
    threads_.emplace_back([this, socket, w] { Read(socket, w); });
  }
}

void Load::Stop() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::vector<uint64_t> Load::committed() {
  std::lock_guard lock(mu_);
  return committed_;
}

void Load::Write(const std::string& socket, uint64_t first) {
  Worker worker(socket, Shape());
  for (uint64_t n = 0; !stopping_; ++n) {
    const auto keys = Keys(first + n * kKeysPerStore, kKeysPerStore);
    for (size_t i = 0; i < keys.size(); ++i) worker.Fill(keys[i], i);
    v1::Store store = worker.StoreOf(keys);
    store.set_want_durable(true);
    auto operation = worker.client().Store(std::move(store));
    if (!operation.ok() || !(*operation)->WaitEnded(kPatience)) return;
    if ((*operation)->status().code() == absl::StatusCode::kUnavailable) return;  // Draining.
    if (!(*operation)->status().ok()) continue;
    std::lock_guard lock(mu_);
    committed_.insert(committed_.end(), keys.begin(), keys.end());
    ++stores_;
  }
}

void Load::Read(const std::string& socket, uint64_t seed) {
  Worker worker(socket, Shape());
  std::mt19937_64 random(seed);
  while (!stopping_) {
    std::vector<uint64_t> keys;
    for (const auto known = committed(); !known.empty() && keys.size() < kKeysPerStore;) {
      keys.push_back(known[random() % known.size()]);
    }
    if (keys.empty()) {
      std::this_thread::yield();
      continue;
    }
    const v1::RequestDone done = worker.Get(keys);
    std::vector<uint32_t> valid(done.other_valid().begin(), done.other_valid().end());
    for (uint32_t i = 0; i < done.leading_valid(); ++i) valid.push_back(i);
    for (const uint32_t i : valid) worker.Holds(keys[i], i) ? ++hits_ : ++wrong_;
  }
}

}  // namespace kvstream
