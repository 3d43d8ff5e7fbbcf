#include "client/cuda/copier.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "client/cuda/cuda_status.h"

namespace kvstream::cuda {
namespace {

// How often the thread asks whether copies have completed, while some are in flight. A part takes
// about a millisecond to land.
constexpr absl::Duration kPoll = absl::Microseconds(50);

// Cuts long copies, so that no warp works alone in the end.
void Cut(std::vector<Copy>* copies) {
  const auto is_long = [](const Copy& copy) { return copy.bytes > kCopyBytesMax; };
  if (std::none_of(copies->begin(), copies->end(), is_long)) return;
  std::vector<Copy> cut;
  cut.reserve(copies->size() * 2);
  for (Copy copy : *copies) {
    for (; copy.bytes > kCopyBytesMax; copy.bytes -= kCopyBytesMax) {
      cut.push_back({copy.src, copy.dst, kCopyBytesMax});
      copy.src += kCopyBytesMax;
      copy.dst += kCopyBytesMax;
    }
    cut.push_back(copy);
  }
  copies->swap(cut);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Copier>> Copier::Start(const CopierOptions& options) {
  std::unique_ptr<Copier> copier(new Copier(options));
  const CurrentDevice current(options.device);
  if (!current.status().ok()) return current.status();
  if (auto s = copier->Open(); !s.ok()) return s;
  copier->thread_ = std::thread([c = copier.get()] { c->Run(); });
  return copier;
}

Copier::Copier(const CopierOptions& options) : options_(options), slots_(options.slots) {}

Copier::~Copier() {
  Stop();
  Close();
}

absl::Status Copier::Open() {
  int lowest = 0;
  int highest = 0;
  if (auto s = FromCuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                        "open copier: stream priorities");
      !s.ok()) {
    return s;
  }
  const int priority = std::clamp(options_.stream_priority, highest, lowest);
  if (auto s = FromCuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
                        "open copier: create stream");
      !s.ok()) {
    return s;
  }
  const size_t bytes = options_.copies_per_launch * sizeof(Copy);
  for (Slot& slot : slots_) {
    cudaError_t error = cudaHostAlloc(reinterpret_cast<void**>(&slot.host), bytes, 0);
    if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&slot.device), bytes);
    if (error == cudaSuccess) {
      error = cudaEventCreateWithFlags(&slot.event, cudaEventDisableTiming);
    }
    if (error != cudaSuccess) return FromCuda(error, "open copier: create a slot");
  }
  return absl::OkStatus();
}

void Copier::Close() {
  const CurrentDevice current(options_.device);
  // After a failed copy these may fail as well, and there is nobody to tell.
  for (const Slot& slot : slots_) {
    if (slot.event != nullptr) (void)cudaEventDestroy(slot.event);
    if (slot.device != nullptr) (void)cudaFree(slot.device);
    if (slot.host != nullptr) (void)cudaFreeHost(slot.host);
  }
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  (void)cudaGetLastError();
}

void Copier::Add(uint32_t slot, List list, Done done) {
  Item item;
  item.slot = slot;
  item.list = std::move(list);
  item.done = std::move(done);
  Push(std::move(item));
}

void Copier::Then(absl::AnyInvocable<void()> then) {
  Item item;
  item.then = std::move(then);
  Push(std::move(item));
}

void Copier::Push(Item item) {
  absl::MutexLock lock(&mu_);
  added_.push_back(std::move(item));
  changed_.NotifyAll();
}

void Copier::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Copier::Run() {
  if (auto s = FromCuda(cudaSetDevice(options_.device), "run copier: use the device"); !s.ok()) {
    failure_ = s;
  }
  std::deque<Item> running;
  while (Take(&running)) {
    while (!running.empty() && IsDone(&running.front())) {
      // Off the queue first: a callback may add to it.
      Item item = std::move(running.front());
      running.pop_front();
      if (item.then) {
        item.then();
      } else {
        item.done(item.status);
      }
    }
  }
}

bool Copier::Take(std::deque<Item>* running) {
  std::deque<Item> added;
  {
    absl::MutexLock lock(&mu_);
    const auto has_work = [this] {
      mu_.AssertReaderHeld();
      return !added_.empty() || stopping_;
    };
    if (running->empty()) {
      changed_.Wait(&mu_, absl::InfiniteDuration(), has_work);
    } else if (added_.empty()) {
      const auto has_added = [this] {
        mu_.AssertReaderHeld();
        return !added_.empty();
      };
      changed_.Wait(&mu_, kPoll, has_added);
    }
    added.swap(added_);
    if (added.empty() && running->empty() && stopping_) return false;
  }
  for (Item& item : added) {
    running->push_back(std::move(item));
    if (!running->back().then) Begin(&running->back());
  }
  return true;
}

void Copier::Begin(Item* item) {
  if (!failure_.ok()) return Fail(item, failure_);
  if (auto s = item->list(&item->copies); !s.ok()) return Fail(item, s);
  Cut(&item->copies);
  Launch(item);
}

void Copier::Launch(Item* item) {
  const size_t count =
      std::min<size_t>(item->copies.size() - item->next, options_.copies_per_launch);
  if (count == 0) return;
  const Slot& slot = slots_[item->slot];
  std::copy_n(item->copies.begin() + static_cast<ptrdiff_t>(item->next), count, slot.host);
  item->next += count;
  cudaError_t error = cudaMemcpyAsync(slot.device, slot.host, count * sizeof(Copy),
                                      cudaMemcpyHostToDevice, stream_);
  if (error == cudaSuccess) {
    error = LaunchCopies(slot.device, static_cast<uint32_t>(count), options_.grid, stream_);
  }
  // Recorded after a failure too: the upload may be under way.
  const cudaError_t recorded = cudaEventRecord(slot.event, stream_);
  item->in_flight = recorded == cudaSuccess;
  if (error == cudaSuccess) error = recorded;
  if (error != cudaSuccess) Fail(item, FromCuda(error, "launch copies"));
}

bool Copier::IsDone(Item* item) {
  while (item->in_flight) {
    const cudaError_t error = cudaEventQuery(slots_[item->slot].event);
    if (error == cudaErrorNotReady) {
      // No failure, but kept as one until it is read.
      (void)cudaGetLastError();
      return false;
    }
    item->in_flight = false;
    if (error != cudaSuccess) {
      Fail(item, FromCuda(error, "run copies"));
    } else if (item->status.ok()) {
      Launch(item);
    }
  }
  return true;
}

void Copier::Fail(Item* item, const absl::Status& status) {
  item->status = status;
  item->next = item->copies.size();
  if (failure_.ok()) failure_ = status;
}

}  // namespace kvstream::cuda
