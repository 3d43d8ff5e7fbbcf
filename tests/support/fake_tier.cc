#include "tests/support/fake_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "server/base/check.h"
#include "server/base/errno_status.h"
#include "server/base/unique_fd.h"

namespace kvstream::test {
namespace {

// A descriptor of a file with these bytes.
UniqueFd FileOf(const std::vector<std::byte>& bytes) {
  UniqueFd fd(memfd_create("fake-tier-file", MFD_CLOEXEC));
  KV_CHECK(fd.valid());
  KV_CHECK(pwrite(fd.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return fd;
}

}  // namespace

void FakeTier::Pipe::SetRate(uint64_t rate, TimeNs now) {
  if (!items_.empty()) {
    const auto moved = static_cast<unsigned __int128>(rate_) * static_cast<uint64_t>(now - since_);
    items_.front().work -= std::min(items_.front().work, moved);
  }
  since_ = now;
  rate_ = rate;
}

void FakeTier::Pipe::Push(uint64_t bytes, uint64_t job, TimeNs now) {
  if (items_.empty()) since_ = now;
  items_.push_back({job, static_cast<unsigned __int128>(bytes) * kSecond});
}

TimeNs FakeTier::Pipe::FrontDoneAt() const {
  if (items_.empty() || (rate_ == 0 && items_.front().work > 0)) return kNever;
  if (items_.front().work == 0) return since_;
  return since_ + static_cast<TimeNs>((items_.front().work + rate_ - 1) / rate_);
}

uint64_t FakeTier::Pipe::Pop(TimeNs now) {
  const uint64_t job = items_.front().job;
  items_.pop_front();
  since_ = now;
  return job;
}

FakeTier::FakeTier(Options options, tier::CompletionSink* sink)
    : options_(std::move(options)),
      sink_(*sink),
      facts_{.io_engine = "fake",
             .direct = true,
             .alignment = tier::kBlockBytes,
             .registered_buffers = false},
      random_(options_.seed),
      reads_(options_.read_rate),
      writes_(options_.write_rate) {}

Fault FakeTier::NextFault(FaultPoint point, const std::string& path, uint64_t bytes) {
  if (options_.faults == nullptr) return {};
  const Fault fault = options_.faults->Next(point, bytes);
  const bool spared = fault.harms() && options_.may_harm && !options_.may_harm(point, fault, path);
  return spared ? Fault{} : fault;
}

void FakeTier::Read(std::span<const tier::ReadRequest> requests) {
  for (const tier::ReadRequest& request : requests) {
    Job job;
    job.fault = NextFault(FaultPoint::kRead, *request.path, request.length);
    job.finish = [this, request](const Fault& fault) { return FinishRead(request, fault); };
    Accept(&reads_, request.length, std::move(job));
  }
}

void FakeTier::Write(tier::WriteRequest request) {
  uint64_t bytes = request.header.size();
  for (const auto& piece : request.pieces) bytes += piece.size();
  Job job;
  job.fault = NextFault(FaultPoint::kWrite, *request.path, bytes);
  job.kind = tier::Completion::Kind::kWrite;
  job.finish = [this, request = std::move(request)](const Fault& fault) {
    return FinishWrite(request, fault);
  };
  Accept(&writes_, bytes, std::move(job));
}

void FakeTier::SetAside(tier::SetAsideRequest request) {
  // Shared, because a std::function must be copyable.
  auto shared = std::make_shared<tier::SetAsideRequest>(std::move(request));
  Job job;
  job.kind = tier::Completion::Kind::kSetAside;
  job.finish = [this, shared](const Fault&) { return FinishSetAside(*shared); };
  running_.emplace(++jobs_, std::move(job));
  due_.emplace(std::pair(now_ + Latency(), jobs_), jobs_);
}

void FakeTier::Measure(Ticket ticket) {
  Job job;
  job.kind = tier::Completion::Kind::kMeasure;
  job.finish = [this, ticket](const Fault&) {
    tier::Completion completion = Begin(tier::Completion::Kind::kMeasure, ticket);
    completion.space.bytes = options_.capacity_bytes;
    completion.space.free_bytes = options_.capacity_bytes - UsedBytes();
    return completion;
  };
  running_.emplace(++jobs_, std::move(job));
  due_.emplace(std::pair(now_ + Latency(), jobs_), jobs_);
}

uint64_t FakeTier::UsedBytes() const {
  uint64_t used = 0;
  for (const auto& [path, bytes] : files_) used += bytes.size();
  return used;
}

void FakeTier::Accept(Pipe* pipe, uint64_t bytes, Job job) {
  const bool never = job.fault.kind == Fault::Kind::kNever;
  running_.emplace(++jobs_, std::move(job));
  // One that never completes takes no turn, or nothing behind it would complete either.
  if (!never) pipe->Push(bytes, jobs_, now_);
}

TimeNs FakeTier::Latency() {
  if (options_.jitter == 0) return options_.latency;
  // Not std::uniform_int_distribution, whose numbers depend on the library.
  return options_.latency + static_cast<TimeNs>(random_() % static_cast<uint64_t>(options_.jitter));
}

TimeNs FakeTier::NextEventAt() const {
  TimeNs next = std::min(reads_.FrontDoneAt(), writes_.FrontDoneAt());
  if (!due_.empty()) next = std::min(next, due_.begin()->first.first);
  return next;
}

void FakeTier::AdvanceTo(TimeNs now) {
  KV_CHECK(now >= now_);
  for (TimeNs next = NextEventAt(); next <= now && next != kNever; next = NextEventAt()) {
    now_ = std::max(now_, next);
    for (Pipe* pipe : {&reads_, &writes_}) {
      if (pipe->FrontDoneAt() > now_) continue;
      const uint64_t job = pipe->Pop(now_);
      due_.emplace(std::pair(now_ + Latency() + running_.at(job).fault.delay, job), job);
    }
    if (due_.empty() || due_.begin()->first.first > now_) continue;
    const uint64_t id = due_.begin()->second;
    due_.erase(due_.begin());
    Complete(id, nullptr);
  }
  now_ = now;
}

void FakeTier::Complete(uint64_t id, const Fault* instead) {
  const auto job = running_.extract(id);
  tier::Completion completion =
      job.mapped().finish(instead != nullptr ? *instead : job.mapped().fault);
  sink_.OnCompletions({&completion, 1});
}

void FakeTier::EndHung() {
  std::vector<uint64_t> hung;
  for (const auto& [id, job] : running_) {
    if (job.fault.kind == Fault::Kind::kNever) hung.push_back(id);
  }
  const Fault failed{.kind = Fault::Kind::kErrno, .error = EIO};
  for (const uint64_t id : hung) Complete(id, &failed);
}

void FakeTier::Crash() {
  for (auto& [id, job] : running_) {
    if (job.kind == tier::Completion::Kind::kWrite && random_() % 2 == 0) (void)job.finish({});
  }
  running_.clear();
  due_.clear();
  reads_.Clear();
  writes_.Clear();
}

tier::TierRoot FakeTier::Root() const {
  if (options_.tier.root.empty()) return {};
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  return {UniqueFd(open(options_.tier.root.c_str(), flags)), stats_.remounts.Get()};
}

bool FakeTier::Stop(TimeNs deadline) {
  for (TimeNs next = NextEventAt(); next <= deadline && next != kNever; next = NextEventAt()) {
    AdvanceTo(std::max(now_, next));
  }
  const bool all = running_.empty();
  running_.clear();
  due_.clear();
  reads_.Clear();
  writes_.Clear();
  return all;
}

tier::Completion FakeTier::Begin(tier::Completion::Kind kind, Ticket ticket) const {
  tier::Completion completion;
  completion.kind = kind;
  completion.tier = options_.tier.id;
  completion.ticket = ticket;
  return completion;
}

tier::Completion FakeTier::FinishRead(const tier::ReadRequest& request, const Fault& fault) {
  tier::Completion completion = Begin(tier::Completion::Kind::kRead, request.ticket);
  const auto file = files_.find(*request.path);
  if (fault.kind == Fault::Kind::kErrno) {
    completion.code = ErrnoStatus(fault.error, "read", *request.path).code();
    completion.error = fault.error;
  } else if (file == files_.end()) {
    completion.code = absl::StatusCode::kNotFound;
    completion.error = ENOENT;
  } else if (fault.kind == Fault::Kind::kShort ||
             file->second.size() < request.offset + request.length) {
    completion.code = absl::StatusCode::kDataLoss;
  }
  if (completion.code == absl::StatusCode::kOk) {
    std::memcpy(request.buffer, file->second.data() + request.offset, request.length);
    if (fault.kind == Fault::Kind::kCorrupt) {
      request.buffer[fault.at % request.length] ^= std::byte{0xff};
    }
    stats_.bytes_read.Add(request.length);
  } else if (completion.code != absl::StatusCode::kNotFound) {
    stats_.read_errors.Add();
  }
  return completion;
}

tier::Completion FakeTier::FinishWrite(const tier::WriteRequest& request, const Fault& fault) {
  tier::Completion completion = Begin(tier::Completion::Kind::kWrite, request.ticket);
  if (fault.kind == Fault::Kind::kErrno) {
    completion.code = ErrnoStatus(fault.error, "write", *request.path).code();
    completion.error = fault.error;
    stats_.write_errors.Add();
    return completion;
  }
  std::vector<std::byte> bytes(request.header.begin(), request.header.end());
  for (const auto& piece : request.pieces) bytes.insert(bytes.end(), piece.begin(), piece.end());
  if (fault.kind == Fault::Kind::kCorrupt) bytes[fault.at % bytes.size()] ^= std::byte{0xff};
  if (fault.kind == Fault::Kind::kShort) bytes.resize(std::min<uint64_t>(fault.at, bytes.size()));
  if (!files_.contains(*request.path) && UsedBytes() + bytes.size() > options_.capacity_bytes) {
    completion.code = ErrnoStatus(ENOSPC, "write", *request.path).code();
    completion.error = ENOSPC;
    stats_.write_errors.Add();
    return completion;
  }
  stats_.bytes_written.Add(bytes.size());
  const auto [file, published] = files_.emplace(*request.path, std::move(bytes));
  if (!published) {
    const std::vector<std::byte>& there = file->second;
    completion.code = absl::StatusCode::kAlreadyExists;
    completion.error = EEXIST;
    const size_t header = std::min<size_t>(there.size(), tier::kBlockBytes);
    completion.existing_header.assign(there.data(), there.data() + header);
    completion.existing_bytes = there.size();
  }
  return completion;
}

tier::Completion FakeTier::FinishSetAside(tier::SetAsideRequest& request) {
  const auto file = files_.find(*request.path);
  tier::Completion completion = Begin(tier::Completion::Kind::kSetAside, request.ticket);
  if (file == files_.end()) {
    if (request.replace != nullptr) (void)request.replace();
    return completion;
  }
  if (request.damaged == nullptr) {
    files_.erase(file);
    return completion;
  }
  const absl::StatusOr<bool> damaged = request.damaged(FileOf(file->second).get());
  completion.code = damaged.status().code();
  if (!damaged.ok() || !*damaged) return completion;
  files_.erase(file);
  if (request.replace != nullptr) (void)request.replace();
  return completion;
}

}  // namespace kvstream::test
