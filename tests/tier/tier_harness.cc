#include "tests/tier/tier_harness.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "server/base/check.h"
#include "server/base/clock.h"
#include "tests/support/fake_tier.h"

namespace kvstream::tier {
namespace {

class FakeHarness final : public Harness {
 public:
  explicit FakeHarness(const TierOptions& options)
      : tier_({.tier = options, .jitter = kMillisecond}, &recorder_) {}

  Tier& tier() override { return tier_; }
  std::vector<Completion> Await(size_t n) override {
    while (recorder_.count() < n && tier_.NextEventAt() != kNever) {
      tier_.AdvanceTo(tier_.NextEventAt());
    }
    return recorder_.completions();
  }
  bool Exists(const std::string& path) override { return tier_.files().contains(path); }
  std::vector<std::byte> Contents(const std::string& path) override {
    return tier_.files().at(path);
  }
  void Truncate(const std::string& path, uint64_t bytes) override {
    tier_.files().at(path).resize(bytes);
  }
  TimeNs PatientDeadline() override { return tier_.now() + 60 * kSecond; }

 private:
  Recorder recorder_;
  test::FakeTier tier_;
};

class FileHarness final : public Harness {
 public:
  FileHarness(TierOptions options, IoEngine engine) {
    options.io_engine = engine;
    options.root = folder_.path();
    auto tier = OpenFileTier(options, {}, &recorder_);
    EXPECT_TRUE(tier.ok()) << tier.status();
    KV_CHECK(tier.ok());
    tier_ = *std::move(tier);
  }
  ~FileHarness() override { EXPECT_TRUE(tier_->Stop(PatientDeadline())); }

  Tier& tier() override { return *tier_; }
  std::vector<Completion> Await(size_t n) override {
    recorder_.Await(n);
    return recorder_.completions();
  }
  bool Exists(const std::string& path) override { return std::filesystem::exists(Path(path)); }
  std::vector<std::byte> Contents(const std::string& path) override {
    std::ifstream file(Path(path), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    return {begin, begin + text.size()};
  }
  void Truncate(const std::string& path, uint64_t bytes) override {
    std::filesystem::resize_file(Path(path), bytes);
  }
  TimeNs PatientDeadline() override { return Now() + 60 * kSecond; }

 private:
  std::string Path(const std::string& path) const { return folder_.path() + "/" + path; }

  TemporaryFolder folder_;
  Recorder recorder_;
  std::unique_ptr<Tier> tier_;
};

}  // namespace

void Recorder::OnCompletions(std::span<Completion> completions) {
  std::lock_guard lock(mu_);
  for (Completion& c : completions) completions_.push_back(std::move(c));
  changed_.notify_all();
}

void Recorder::Await(size_t n) {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] { return completions_.size() >= n; });
}

size_t Recorder::count() {
  std::lock_guard lock(mu_);
  return completions_.size();
}

std::vector<Completion> Recorder::completions() {
  std::lock_guard lock(mu_);
  return completions_;
}

Blocks::Blocks(uint64_t bytes)
    : data_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, bytes))), size_(bytes) {
  KV_CHECK(data_ != nullptr);
  std::memset(data_.get(), 0, bytes);
}

void Blocks::Free::operator()(std::byte* p) const { std::free(p); }

Blocks Blocks::Pattern(uint64_t bytes, uint64_t seed) {
  Blocks blocks(bytes);
  std::mt19937_64 random(seed);
  for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(blocks.data() + at, &word, sizeof word);
  }
  return blocks;
}

TemporaryFolder::TemporaryFolder(std::string parent)
    : path_((parent.empty() ? testing::TempDir() : std::move(parent)) + "/kvstream-tier-XXXXXX") {
  KV_CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

std::vector<std::string> TemporaryFolder::Files() const {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    if (entry.is_regular_file()) {
      files.push_back(std::filesystem::relative(entry.path(), path_).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusCode Harness::Write(const std::string& path, const Blocks& file) {
  tier().Write({.ticket = NextTicket(),
                .path = &path,
                .header = file.Part(0, kBlockBytes),
                .pieces = {file.Part(kBlockBytes, file.size() - kBlockBytes)}});
  return Await(++awaited).back().code;
}

Completion Harness::Read(const std::string& path, uint64_t offset, std::span<std::byte> into) {
  const ReadRequest request{NextTicket(), &path, offset, into.size(), into.data()};
  tier().Read({&request, 1});
  return Await(++awaited).back();
}

Completion Harness::SetAside(const std::string& path,
                             std::function<absl::StatusOr<bool>(int)> damaged) {
  tier().SetAside({.ticket = NextTicket(), .path = &path, .damaged = std::move(damaged)});
  return Await(++awaited).back();
}

std::unique_ptr<Harness> MakeFakeHarness(const TierOptions& options) {
  return std::make_unique<FakeHarness>(options);
}

std::unique_ptr<Harness> MakeUringHarness(const TierOptions& options) {
  return std::make_unique<FileHarness>(options, IoEngine::kUring);
}

std::unique_ptr<Harness> MakeThreadsHarness(const TierOptions& options) {
  return std::make_unique<FileHarness>(options, IoEngine::kThreads);
}

}  // namespace kvstream::tier
