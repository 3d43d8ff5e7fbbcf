#include "client/replay/replay.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/time/clock.h"
#include "client/owned_fd.h"
#include "client/status_convert.h"

namespace kvstream::replay {
namespace {

// Within this a broken connection is noticed.
constexpr absl::Duration kNoticeTime = absl::Seconds(1);

uint64_t IdsEnd(const std::vector<Request>& requests) {
  uint64_t end = 1;
  for (const Request& request : requests) {
    for (const uint64_t id : request.ids) end = std::max(end, id + 1);
  }
  return end;
}

// The chunks of the largest step, at least one.
size_t LargestStep(const std::vector<Request>& requests, uint64_t batch) {
  size_t largest = 1;
  for (size_t first = 0; first < requests.size(); first += batch) {
    size_t chunks = 0;
    const size_t end = std::min<size_t>(requests.size(), first + batch);
    for (size_t i = first; i < end; ++i) chunks += requests[i].ids.size();
    largest = std::max(largest, chunks);
  }
  return largest;
}

}  // namespace

Replay::Replay(ReplayOptions options, std::vector<Request> requests)
    : options_(std::move(options)),
      requests_(std::move(requests)),
      content_(options_.seed, options_.chunk_bytes, IdsEnd(requests_)),
      slots_(LargestStep(requests_, options_.batch)) {}

std::span<std::byte> Replay::SlotAt(size_t slot) const {
  return {buffer_.data() + slot * options_.chunk_bytes, options_.chunk_bytes};
}

v1::ChunkAt Replay::At(uint64_t id, size_t slot) const {
  v1::ChunkAt at;
  std::string hash(16, '\0');
  for (int i = 0; i < 8; ++i) hash[8 + i] = static_cast<char>(id >> (56 - 8 * i));
  at.set_prefix_hash(hash);
  v1::HostRange* host = at.mutable_placement()->mutable_host();
  host->set_buffer_id(buffer_.id());
  host->set_offset(slot * options_.chunk_bytes);
  return at;
}

absl::Status Replay::Connect() {
  auto client = Client::Connect(options_.client);
  if (!client.ok()) return absl::UnavailableError(client.status().message());
  client_ = *std::move(client);
  v1::Namespace description;
  description.set_model("kvstreamctl-replay");
  description.set_weights_fingerprint("seed " + std::to_string(options_.seed) + " " +
                                      options_.label);
  description.set_kv_dtype("bytes");
  description.set_layout("opaque");
  description.set_chunk_tokens(kBlockTokens);
  description.set_segment_bytes(options_.segment_bytes);
  description.add_groups()->set_chunk_bytes(options_.chunk_bytes);
  auto name_space = client_->RegisterNamespace(description, {});
  if (!name_space.ok()) return name_space.status();
  namespace_ = *std::move(name_space);
  if (auto status = MakeBuffer(); !status.ok()) return status;
  auto counters = client_->GetStatus();
  if (!counters.ok()) return counters.status();
  baseline_ = *std::move(counters);
  return absl::OkStatus();
}

absl::Status Replay::MakeBuffer() {
  const uint64_t bytes = slots_ * options_.chunk_bytes;
  absl::StatusOr<HostBuffer> buffer;
  if (options_.own_buffer) {
    const OwnedFd fd(memfd_create("kvstreamctl-replay", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd.get() < 0 || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
        fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      return FromErrno(errno, "make", "a buffer");
    }
    buffer = client_->AttachHostBuffer(fd.get(), bytes);
  } else {
    buffer = client_->CreateHostBuffer(bytes);
  }
  if (!buffer.ok()) return buffer.status();
  buffer_ = *std::move(buffer);
  return absl::OkStatus();
}

absl::Status Replay::Reconnect() {
  report_.restarts += 1;
  const absl::Time deadline = absl::Now() + options_.reconnect;
  for (;;) {
    client_.reset();
    absl::Status status = Connect();
    if (status.ok() || absl::Now() >= deadline) return status;
    absl::SleepFor(absl::Milliseconds(50));
  }
}

absl::Status Replay::Run(const Progress& progress) {
  const absl::Time began = absl::Now();
  if (auto status = Connect(); !status.ok()) return status;
  for (size_t first = 0; first < requests_.size(); first += options_.batch) {
    Batch batch;
    const size_t end = std::min<size_t>(requests_.size(), first + options_.batch);
    for (size_t i = first; i < end; ++i) batch.push_back(&requests_[i]);
    if (auto status = Step(batch); !status.ok()) return status;
    report_.elapsed = absl::Now() - began;
    progress(report_);
  }
  return ReadCounters();
}

absl::Status Replay::Step(const Batch& batch) {
  for (const Request* request : batch) {
    report_.chunks += request->ids.size();
    report_.possible_hits += possible_.LeadingHits(request->ids);
  }
  absl::Status status = TryStep(batch);
  while (!status.ok() && SessionLost(status)) {
    if (auto lost = Reconnect(); !lost.ok()) return lost;
    status = TryStep(batch);
  }
  if (!status.ok()) return status;
  for (const Request* request : batch) possible_.Add(request->ids);
  report_.requests += batch.size();
  report_.steps += 1;
  for (const uint32_t hits : hits_) report_.hits += hits;
  return absl::OkStatus();
}

bool Replay::SessionLost(const absl::Status& status) const {
  // A call may fail before the session's own end is noticed; a daemon that only refuses, because it
  // drains, keeps the session.
  const absl::Time deadline = absl::Now() + kNoticeTime;
  while (absl::IsUnavailable(status) && client_->session_status().ok() && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  return !client_->session_status().ok();
}

absl::Status Replay::TryStep(const Batch& batch) {
  hits_.assign(batch.size(), 0);
  std::vector<uint32_t> found(batch.size());
  for (size_t r = 0; r < batch.size(); ++r) {
    if (batch[r]->ids.empty()) continue;
    const auto leading = Lookup(*batch[r]);
    if (!leading.ok()) return leading.status();
    found[r] = *leading;
  }
  if (auto status = Read(batch, found); !status.ok()) return status;
  if (auto status = client_->ForwardBegan(0); !status.ok()) return status;
  if (options_.forward > absl::ZeroDuration()) absl::SleepFor(options_.forward);
  return StoreRest(batch);
}

absl::StatusOr<uint32_t> Replay::Lookup(const Request& request) {
  v1::LookupRequest lookup;
  lookup.set_namespace_id(namespace_.id);
  for (const uint64_t id : request.ids) AddPrefixHash(At(id, 0).prefix_hash(), &lookup);
  const auto reply = client_->Lookup(std::move(lookup));
  if (!reply.ok()) return reply.status();
  return reply->leading_run();
}

absl::Status Replay::Read(const Batch& batch, const std::vector<uint32_t>& found) {
  v1::ReadStep step;
  step.set_mode(v1::ReadStep::MODE_INDEPENDENT);
  step.set_deadline_ms(absl::ToInt64Milliseconds(options_.deadline));
  std::vector<size_t> members;
  std::vector<size_t> first_slots;
  size_t slot = 0;
  for (size_t r = 0; r < batch.size(); ++r) {
    if (found[r] == 0) continue;
    v1::ReadRequest* request = step.add_requests();
    request->set_request_id(r);
    request->set_namespace_id(namespace_.id);
    members.push_back(r);
    first_slots.push_back(slot);
    for (uint32_t i = 0; i < found[r]; ++i) *request->add_chunks() = At(batch[r]->ids[i], slot++);
  }
  if (members.empty()) return absl::OkStatus();
  std::memset(buffer_.data(), static_cast<int>(kPoison), slot * options_.chunk_bytes);
  const absl::Time began = absl::Now();
  const auto operation = client_->ReadStep(std::move(step));
  if (!operation.ok()) return operation.status();
  // Not the deadline but the end says that the buffer is ours again.
  if (!(*operation)->WaitEnded(options_.deadline + options_.reconnect)) {
    return absl::UnavailableError("read step: the daemon does not end it");
  }
  if (!client_->session_status().ok()) return client_->session_status();
  report_.step_times.push_back(absl::Now() - began);
  const auto results = (*operation)->results();
  for (size_t m = 0; m < members.size(); ++m) {
    Verify(*batch[members[m]], results[m], first_slots[m]);
    hits_[members[m]] = results[m].leading_valid();
    report_.chunks_failed +=
        found[members[m]] - results[m].leading_valid() - results[m].other_valid_size();
  }
  return absl::OkStatus();
}

void Replay::Verify(const Request& request, const v1::RequestDone& done, size_t first_slot) {
  const auto verify = [&](uint32_t index) {
    const uint64_t id = request.ids[index];
    report_.bytes_read += options_.chunk_bytes;
    const auto wrong = content_.Verify(id, SlotAt(first_slot + index));
    if (!wrong) return;
    if (report_.wrong_bytes == 0) {
      report_.first_wrong = "chunk " + std::to_string(id) + " at byte " +
                            std::to_string(wrong->offset) + ": " + wrong->held;
    }
    report_.wrong_bytes += wrong->wrong_bytes;
  };
  for (uint32_t i = 0; i < done.leading_valid(); ++i) verify(i);
  for (const uint32_t i : done.other_valid()) verify(i);
}

absl::Status Replay::StoreRest(const Batch& batch) {
  v1::Store store;
  store.set_namespace_id(namespace_.id);
  store.set_admission_ms(absl::ToInt64Milliseconds(options_.admission));
  store.set_deadline_ms(absl::ToInt64Milliseconds(options_.deadline + options_.admission));
  absl::flat_hash_set<uint64_t> seen;  // Requests of a step may share chunks.
  for (size_t r = 0; r < batch.size(); ++r) {
    const auto& ids = batch[r]->ids;
    for (size_t i = hits_[r]; i < ids.size(); ++i) {
      if (!seen.insert(ids[i]).second) continue;
      const size_t slot = static_cast<size_t>(store.chunks_size());
      content_.Fill(ids[i], SlotAt(slot));
      *store.add_chunks() = At(ids[i], slot);
    }
  }
  if (store.chunks_size() == 0) return absl::OkStatus();
  const auto operation = client_->Store(std::move(store));
  if (!operation.ok()) return operation.status();
  if (!(*operation)->WaitEnded(options_.deadline + options_.admission + options_.reconnect)) {
    return absl::UnavailableError("store chunks: the daemon does not end it");
  }
  if (!client_->session_status().ok()) return client_->session_status();
  for (const StoreOperation::Chunk& chunk : (*operation)->chunks()) {
    if (chunk.code != v1::OK) {
      report_.chunks_dropped += 1;
    } else if (chunk.existed) {
      report_.chunks_existed += 1;
    } else {
      report_.chunks_stored += 1;
    }
  }
  return absl::OkStatus();
}

absl::Status Replay::ReadCounters() {
  const absl::Time deadline = absl::Now() + options_.deadline;
  for (;;) {
    const auto status = client_->GetStatus();
    if (!status.ok()) return status.status();
    // Second copies may wait for a tier that is out for as long as it is.
    const bool all_in = std::all_of(status->tiers().begin(), status->tiers().end(),
                                    [](const auto& t) { return t.state() == v1::TIER_STATE_OK; });
    if (all_in && status->pool().staged_bytes() > 0 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));  // What is written late counts too.
      continue;
    }
    for (int t = 0; t < status->tiers_size(); ++t) {
      const v1::TierStatus& now = status->tiers(t);
      const v1::TierStatus& then = baseline_.tiers(t);
      report_.tiers.push_back({now.name(), now.bytes_read() - then.bytes_read(),
                               now.bytes_written() - then.bytes_written()});
    }
    report_.pool_bytes =
        status->operations().bytes_from_pool() - baseline_.operations().bytes_from_pool();
    return absl::OkStatus();
  }
}

}  // namespace kvstream::replay
