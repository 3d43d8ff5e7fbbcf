// kvstream-metadata-bench: publishes many small chunks, looks them up, or waits until a daemon that
// is starting serves one; for metadata.py.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "client/options.h"

namespace kvstream {
namespace {

constexpr char kUsage[] = R"(Usage: kvstream-metadata-bench MODE --socket PATH [options]

Modes:
  publish  stores the chunks FIRST .. CHUNKS-1, in prompts of 256, until all are published
  lookup   looks up runs of prompts among CHUNKS chunks, some times, one after the other
  first    waits until a daemon that may be starting serves one of CHUNKS chunks

Output: one JSON object.
Exit codes: 0 done, 1 failed or wrong bytes, 2 bad usage.

Options:
)";

constexpr uint64_t kChunkBytes = 4096;
constexpr uint64_t kPrompt = 256;
constexpr size_t kStoresAtOnce = 8;
constexpr absl::Duration kPatience = absl::Minutes(9);

struct BenchOptions {
  std::string socket;
  uint64_t first = 0;
  uint64_t chunks = 0;
  uint64_t keys = 65536;
  uint64_t times = 50;
};

int Fail(const char* what, const absl::Status& status) {
  std::fprintf(stderr, "kvstream-metadata-bench: %s: %s\n", what, status.ToString().c_str());
  return 1;
}

std::string HashOf(uint64_t chunk) {
  std::string hash(16, 'm');
  std::memcpy(hash.data(), &chunk, sizeof chunk);
  return hash;
}

class MetadataBench {
 public:
  explicit MetadataBench(const BenchOptions& options) : options_(options) {}

  absl::Status Connect() {
    auto client = Client::Connect({.grpc_socket = options_.socket, .client_name = "bench"});
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    v1::Namespace description;
    description.set_model("kvstream-bench");
    description.set_weights_fingerprint("metadata");
    description.set_kv_dtype("bytes");
    description.set_layout("opaque");
    description.set_chunk_tokens(256);
    description.add_groups()->set_chunk_bytes(kChunkBytes);
    const auto space = client_->RegisterNamespace(description, {});
    if (!space.ok()) return space.status();
    namespace_id_ = space->id;
    auto buffer = client_->CreateHostBuffer(kStoresAtOnce * kPrompt * kChunkBytes);
    if (!buffer.ok()) return buffer.status();
    buffer_ = *std::move(buffer);
    return absl::OkStatus();
  }

  int Publish() {
    if (auto s = Connect(); !s.ok()) return Fail("connect", s);
    const absl::Time began = absl::Now();
    std::deque<std::shared_ptr<StoreOperation>> running;
    const auto finish = [&] {
      const auto operation = running.front();
      running.pop_front();
      if (!operation->WaitEnded(kPatience)) return absl::DeadlineExceededError("store");
      return operation->status();
    };
    for (uint64_t first = options_.first; first < options_.chunks; first += kPrompt) {
      if (running.size() == kStoresAtOnce) {
        if (auto s = finish(); !s.ok()) return Fail("store", s);
      }
      auto operation = client_->Store(StoreOf(first));
      if (!operation.ok()) return Fail("store", operation.status());
      running.push_back(*std::move(operation));
    }
    while (!running.empty()) {
      if (auto s = finish(); !s.ok()) return Fail("store", s);
    }
    const double seconds = absl::ToDoubleSeconds(absl::Now() - began);
    std::printf("{\"published\": %llu, \"seconds\": %.4f}\n",
                static_cast<unsigned long long>(options_.chunks - options_.first), seconds);
    return 0;
  }

  int Lookup() {
    if (auto s = Connect(); !s.ok()) return Fail("connect", s);
    std::mt19937_64 random(1);
    std::vector<double> ms;
    uint64_t keys = 0;
    for (uint64_t i = 0; i <= options_.times; ++i) {
      v1::LookupRequest request = RunAt(random());
      const size_t asked = request.prefix_hashes().size() / request.prefix_hash_bytes();
      const absl::Time began = absl::Now();
      const auto reply = client_->Lookup(std::move(request));
      const double took = absl::ToDoubleMilliseconds(absl::Now() - began);
      if (!reply.ok()) return Fail("lookup", reply.status());
      if (reply->leading_run() != asked) {
        return Fail("lookup", absl::DataLossError("a chunk that was published is missing"));
      }
      if (i == 0) continue;  // The connection is new.
      ms.push_back(took);
      keys += asked;
    }
    double sum = 0;
    for (const double each : ms) sum += each;
    std::ranges::sort(ms);
    std::printf(
        "{\"keys\": %llu, \"lookups\": %zu, \"ms_p50\": %.3f, \"ms_p99\": %.3f, "
        "\"keys_per_s\": %.0f}\n",
        static_cast<unsigned long long>(keys), ms.size(), ms[ms.size() / 2],
        ms[ms.size() * 99 / 100], static_cast<double>(keys) / sum * 1000);
    return 0;
  }

  int First() {
    const absl::Time give_up = absl::Now() + kPatience;
    while (absl::Now() < give_up) {
      // Any of its parts may not be there yet.
      if (Connect().ok() && ReadOne().ok()) {
        std::printf("{\"served_at\": %.4f}\n",
                    absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
        return 0;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return Fail("first", absl::DeadlineExceededError("no hit"));
  }

 private:
  v1::ChunkAt At(uint64_t chunk, uint64_t slot) const {
    v1::ChunkAt at;
    at.set_prefix_hash(HashOf(chunk));
    at.mutable_placement()->mutable_host()->set_buffer_id(buffer_.id());
    at.mutable_placement()->mutable_host()->set_offset(slot * kChunkBytes);
    return at;
  }

  v1::Store StoreOf(uint64_t first) {
    v1::Store store;
    store.set_namespace_id(namespace_id_);
    store.set_want_durable(true);
    const uint64_t patience_ms = absl::ToInt64Milliseconds(kPatience);
    store.set_admission_ms(patience_ms);
    store.set_deadline_ms(patience_ms);
    const uint64_t slot = first / kPrompt % kStoresAtOnce * kPrompt;
    for (uint64_t i = 0; i < kPrompt && first + i < options_.chunks; ++i) {
      const uint64_t word = first + i;
      std::memcpy(buffer_.data() + (slot + i) * kChunkBytes, &word, sizeof word);
      *store.add_chunks() = At(first + i, slot + i);
    }
    return store;
  }

  // Whole prompts, one after the other, from a random one on.
  v1::LookupRequest RunAt(uint64_t random) const {
    v1::LookupRequest request;
    request.set_namespace_id(namespace_id_);
    const uint64_t keys = std::min(options_.keys, options_.chunks);
    const uint64_t first = random % (options_.chunks - keys + 1);
    for (uint64_t i = 0; i < keys; ++i) AddPrefixHash(HashOf(first + i), &request);
    return request;
  }

  absl::Status ReadOne() {
    const uint64_t chunk = options_.chunks / 2;
    v1::ReadStep step;
    step.set_mode(v1::ReadStep::MODE_JOINT);
    step.set_deadline_ms(absl::ToInt64Milliseconds(kPatience));
    v1::ReadRequest& request = *step.add_requests();
    request.set_request_id(1);
    request.set_namespace_id(namespace_id_);
    *request.add_chunks() = At(chunk, 0);
    std::memset(buffer_.data(), 0xAB, kChunkBytes);
    const auto operation = client_->ReadStep(std::move(step));
    if (!operation.ok()) return operation.status();
    if (!(*operation)->WaitEnded(kPatience)) return absl::DeadlineExceededError("read");
    if ((*operation)->results()[0].leading_valid() != 1) return absl::NotFoundError("a miss");
    if (std::memcmp(buffer_.data(), &chunk, sizeof chunk) != 0) {
      return absl::DataLossError("wrong bytes");
    }
    return absl::OkStatus();
  }

  const BenchOptions options_;
  std::unique_ptr<Client> client_;
  std::string namespace_id_;
  HostBuffer buffer_;
};

int Main(const std::vector<std::string>& arguments) {
  BenchOptions bench;
  bool help = false;
  constexpr uint64_t kMax = uint64_t{1} << 30;
  const std::vector<Option> options{
      TextOption("--socket", "PATH", "the daemon's gRPC socket", &bench.socket),
      NumberOption("--first", "N", "the first chunk to publish", {0, kMax}, &bench.first),
      NumberOption("--chunks", "N", "chunks in all; required", {1, kMax}, &bench.chunks),
      NumberOption("--keys", "N", "of a lookup, at most; 65536", {1, 65536}, &bench.keys),
      NumberOption("--times", "N", "lookups; 50", {1, 1000000}, &bench.times),
      FlagOption("--help", "print this and exit", &help),
  };
  const auto rest = ParseOptions(arguments, options, Positionals::kMixed);
  if (help) {
    std::printf("%s%s", kUsage, OptionsHelp(options).c_str());
    return 0;
  }
  const std::string mode = rest.ok() && rest->size() == 1 ? rest->front() : "";
  if (!bench.socket.empty() && bench.chunks > 0) {
    if (mode == "publish") return MetadataBench(bench).Publish();
    if (mode == "lookup") return MetadataBench(bench).Lookup();
    if (mode == "first") return MetadataBench(bench).First();
  }
  std::fprintf(stderr, "kvstream-metadata-bench: %s\n%s%s",
               rest.ok() ? "needs a mode, --socket and --chunks"
                         : std::string(rest.status().message()).c_str(),
               kUsage, OptionsHelp(options).c_str());
  return 2;
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) { return kvstream::Main({argv + 1, argv + argc}); }
