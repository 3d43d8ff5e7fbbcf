// kvstream-catalog-bench: what a cluster's nodes do to the metadata of the file system that they
// share, and how soon one hears of another's files, by nodes and keys. The catalog is the daemon's
// own, on real files; the seconds between looks are virtual, so that calls are counted and not
// timed. Output: one JSON object for each size.
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/options.h"
#include "server/base/unique_fd.h"
#include "server/catalog/shared_catalog.h"
#include "server/store/chunk_format.h"

namespace kvstream {
namespace {

namespace fs = std::filesystem;

constexpr char kUsage[] = R"(Usage: kvstream-bench catalog --dir DIRECTORY [options]

Nodes of a cluster that share DIRECTORY, an empty directory on the file system in question: each
says which files it has published, and hears of the others', once in a (virtual) second. A row tells
the calls that ask the file system for more than bytes, in a second of a whole cluster in which
every node stores, how many seconds later the last node has heard of a file, and what one look
takes.

Output: one JSON object a line.
Exit codes: 0 done, 1 failed, 2 bad usage.

Options:
)";

constexpr int kSecondsMeasured = 20;
constexpr int kPatience = 60;
constexpr ChunkShape kShape{.payload_bytes = kMiB, .segment_bytes = kMiB};

class Cluster {
 public:
  // False, with a word on stderr, when the directory does not do.
  bool Start(const std::string& dir, uint64_t nodes) {
    const UniqueFd root(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (uint64_t n = 1; n <= nodes; ++n) {
      auto node = std::make_unique<Node>();
      std::memcpy(node->id.bytes.data(), &n, sizeof n);
      bool was_taken = false;
      auto catalog =
          catalog::SharedCatalog::Open(root.get(), node->id, {}, &node->stats, &was_taken);
      if (!catalog.ok()) return Fail("open", catalog.status());
      node->catalog = *std::move(catalog);
      nodes_.push_back(std::move(node));
    }
    return true;
  }

  // A node says that it has so many files more.
  bool Say(size_t n, uint64_t files) {
    Node& node = *nodes_[n];
    store::CatalogFrame frame;
    while (files > 0) {
      for (; files > 0 && !frame.full(); --files) AddFile(&node, &frame);
      const absl::Status said = node.catalog->Say(frame.Take(node.id), now_);
      if (!said.ok()) return Fail("say", said);
    }
    return true;
  }

  bool Second(uint64_t files_of_each) {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (files_of_each > 0 && !Say(n, files_of_each)) return false;
      const auto began = std::chrono::steady_clock::now();
      const absl::Status heard = nodes_[n]->catalog->Hear(now_, nodes_[n].get());
      if (!heard.ok()) return Fail("hear", heard);
      looks_.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began)
              .count());
    }
    now_ += kSecond;
    return true;
  }

  // Seconds until every node has heard of every file of the others.
  int SecondsUntilHeard() {
    for (int seconds = 0; seconds < kPatience; ++seconds) {
      const bool all = std::ranges::all_of(
          nodes_, [this](const auto& node) { return node->heard >= said_ - node->said; });
      if (all) return seconds;
      if (!Second(0)) return -1;
    }
    return -1;
  }

  uint64_t calls() const {
    uint64_t calls = 0;
    for (const auto& node : nodes_) calls += node->stats.metadata_calls.Get();
    return calls;
  }
  double MedianLookMs() {
    std::ranges::sort(looks_);
    return looks_[looks_.size() / 2];
  }
  void ForgetLooks() { looks_.clear(); }

 private:
  struct Node final : catalog::CatalogListener {
    void OnTellingAll() override { heard = 0; }  // They come again.
    void OnAllTold() override {}
    void OnEntry(const store::CatalogEntry&) override { heard += 1; }
    void OnAdopted(const store::CatalogEntry&) override {}

    store::NodeId id;
    catalog::CatalogStats stats;
    std::unique_ptr<catalog::SharedCatalog> catalog;
    uint64_t said = 0;
    uint64_t heard = 0;
  };

  static bool Fail(const char* what, const absl::Status& status) {
    std::fprintf(stderr, "kvstream-catalog-bench: %s: %s\n", what, status.ToString().c_str());
    return false;
  }

  void AddFile(Node* node, store::CatalogFrame* frame) {
    const std::vector<uint64_t> checksums = {++said_};
    store::CatalogEntry entry{.what = store::CatalogEntry::What::kFile,
                              .chunk = {{}, SiblingsId{said_}, {}, kShape, {}, checksums},
                              .before = SiblingsId{said_ - 1}};
    std::memcpy(entry.chunk.key.bytes.data(), &said_, sizeof said_);
    frame->Add(entry);
    node->said += 1;
  }

  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<double> looks_;
  uint64_t said_ = 0;
  TimeNs now_ = kSecond;
};

bool Measure(const fs::path& dir, uint64_t nodes, uint64_t keys) {
  fs::remove_all(dir / "v1");
  Cluster cluster;
  if (!cluster.Start(dir, nodes)) return false;
  for (size_t n = 0; n < nodes; ++n) {
    if (!cluster.Say(n, keys / nodes)) return false;
  }
  if (cluster.SecondsUntilHeard() < 0) return false;
  const uint64_t before = cluster.calls();
  cluster.ForgetLooks();
  for (int second = 0; second < kSecondsMeasured; ++second) {
    if (!cluster.Second(100)) return false;
  }
  const double calls = static_cast<double>(cluster.calls() - before) / kSecondsMeasured;
  const double look_ms = cluster.MedianLookMs();
  // The one who looks last in a second says it, so that this is the longest way.
  if (!cluster.Say(nodes - 1, 1)) return false;
  const int heard = cluster.SecondsUntilHeard();
  std::printf(
      "{\"nodes\": %llu, \"keys\": %llu, \"calls_per_second\": %.1f, "
      "\"calls_per_node_second\": %.2f, \"heard_after_seconds\": %d, "
      "\"look_ms_median\": %.3f}\n",
      static_cast<unsigned long long>(nodes), static_cast<unsigned long long>(keys), calls,
      calls / static_cast<double>(nodes), heard, look_ms);
  std::fflush(stdout);
  fs::remove_all(dir / "v1");
  return heard >= 0;
}

int Main(const std::vector<std::string>& arguments) {
  std::string dir;
  std::vector<std::string> nodes = {"2", "8", "32"};
  std::vector<std::string> keys = {"10000", "1000000"};
  std::vector<std::string> given_nodes;
  std::vector<std::string> given_keys;
  bool help = false;
  const std::vector<Option> options = {
      TextOption("--dir", "DIRECTORY", "empty, on the file system in question; required", &dir),
      ListOption("--nodes", "N", "nodes; may be given several times (2, 8, 32)", &given_nodes),
      ListOption("--keys", "N", "files of all of them (10000, 1000000)", &given_keys),
      FlagOption("--help", "this text", &help)};
  const auto rest = ParseOptions(arguments, options, Positionals::kMixed);
  if (help) {
    std::printf("%s%s", kUsage, OptionsHelp(options).c_str());
    return 0;
  }
  if (!rest.ok() || !rest->empty() || dir.empty() || !fs::is_directory(dir) || !fs::is_empty(dir)) {
    std::fprintf(stderr, "kvstream-catalog-bench: %s\n",
                 rest.ok() ? "--dir must name an empty directory"
                           : std::string(rest.status().message()).c_str());
    return 2;
  }
  if (!given_nodes.empty()) nodes = given_nodes;
  if (!given_keys.empty()) keys = given_keys;
  for (const std::string& n : nodes) {
    for (const std::string& k : keys) {
      if (!Measure(dir, std::strtoull(n.c_str(), nullptr, 10),
                   std::strtoull(k.c_str(), nullptr, 10))) {
        return 1;
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) { return kvstream::Main({argv + 1, argv + argc}); }
