#include "tests/engine/scrub_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "server/base/clock.h"
#include "server/store/chunk_format.h"
#include "tests/store/sample.h"
#include "tests/support/log_recorder.h"

namespace kvstream::engine {
namespace {

constexpr TimeNs kPatience = 60 * kSecond;

}  // namespace

void RecordingScrubSink::Send(const ScrubProgress& progress) {
  MutexLock lock(&mu_);
  sent_.push_back(progress);
}

void RecordingScrubSink::End(absl::Status status) {
  MutexLock lock(&mu_);
  EXPECT_FALSE(end_.has_value()) << "ended twice";
  end_ = std::move(status);
}

std::vector<ScrubProgress> RecordingScrubSink::sent() {
  MutexLock lock(&mu_);
  return sent_;
}

bool RecordingScrubSink::ended() {
  MutexLock lock(&mu_);
  return end_.has_value();
}

absl::Status RecordingScrubSink::end() {
  MutexLock lock(&mu_);
  return end_.value_or(absl::UnknownError("it goes on"));
}

ScrubProgress RecordingScrubSink::Last(TierId tier) {
  MutexLock lock(&mu_);
  ScrubProgress last;
  for (const ScrubProgress& progress : sent_) {
    if (progress.tier == tier) last = progress;
  }
  return last;
}

void AsideTier::SetAside(tier::SetAsideRequest request) {
  if (judging_fails) {
    request.damaged = [judge = std::move(request.damaged)](int fd) mutable {
      // Open, and its reads fail.
      const std::string path = "/proc/self/fd/" + std::to_string(fd);
      const UniqueFd write_only(open(path.c_str(), O_WRONLY | O_CLOEXEC));
      return judge(write_only.get());
    };
  }
  if (closed_) return held_.push_back(std::move(request));
  inner_->SetAside(std::move(request));
}

void AsideTier::Hold(bool closed) {
  closed_ = closed;
  if (closed) return;
  for (tier::SetAsideRequest& request : std::exchange(held_, {})) {
    inner_->SetAside(std::move(request));
  }
}

std::string HangingFolder::Missing() {
  if (geteuid() != 0) return "needs root";
  if (access("/dev/fuse", R_OK | W_OK) != 0) return "needs /dev/fuse";
  return access("/usr/bin/bindfs", X_OK) == 0 ? "" : "needs bindfs";
}

HangingFolder::HangingFolder(const std::string& root) : root_(root) {
  const std::string below = root + ".below";
  std::filesystem::create_directory(below);
  struct stat before;
  EXPECT_EQ(stat(root.c_str(), &before), 0);
  server_ = fork();
  if (server_ == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl("/usr/bin/bindfs", "bindfs", "-f", below.c_str(), root.c_str(), nullptr);
    _exit(127);
  }
  const TimeNs deadline = Now() + kPatience;
  struct stat now = before;
  while (now.st_dev == before.st_dev && Now() < deadline) {
    std::this_thread::yield();
    EXPECT_EQ(stat(root.c_str(), &now), 0);
  }
  EXPECT_NE(now.st_dev, before.st_dev) << "bindfs has not mounted";
}

HangingFolder::~HangingFolder() {
  Resume();
  EXPECT_EQ(umount2(root_.c_str(), MNT_DETACH), 0);
  kill(server_, SIGKILL);
  waitpid(server_, nullptr, 0);
  std::filesystem::remove_all(root_ + ".below");
}

void HangingFolder::Hang() {
  ASSERT_EQ(kill(server_, SIGSTOP), 0);
  ASSERT_EQ(waitpid(server_, nullptr, WUNTRACED), server_);  // It is stopped by now.
}

void HangingFolder::Resume() { kill(server_, SIGCONT); }

ScrubRig::ScrubRig(size_t tiers, const ScrubOptions& options, std::optional<size_t> hanging) {
  test::LogErrorsOnly();
  std::vector<tier::Tier*> raw;
  for (size_t i = 0; i < tiers; ++i) {
    folders_.push_back(std::make_unique<tier::TemporaryFolder>());
    if (hanging == i) hanging_ = std::make_unique<HangingFolder>(folders_.back()->path());
    tier::TierOptions tier{.id = TierId{static_cast<uint32_t>(i)},
                           .name = std::string(1, static_cast<char>('a' + i)),
                           .root = folders_.back()->path(),
                           .io_engine = tier::IoEngine::kThreads,
                           .io_threads = 1};
    auto opened = tier::OpenFileTier(tier, {}, this);
    EXPECT_TRUE(opened.ok()) << opened.status();
    tiers_.push_back(std::make_unique<AsideTier>(*std::move(opened)));
    raw.push_back(tiers_.back().get());
  }
  asides_ = std::make_unique<Asides>(raw, &stats_);
  scrubber_ = std::make_unique<Scrubber>(
      Scrubber::Parts{raw, &index_, asides_.get(), this, &stats_}, options);
}

ScrubRig::~ScrubRig() {
  scrubber_->Stop(Now() + kPatience);
  LoopUntil([this] { return asides_->empty(); });
  for (auto& tier : tiers_) EXPECT_TRUE(tier->Stop(Now() + kPatience));
  for (size_t t = 0; t < folders_.size(); ++t) {
    EXPECT_EQ(stats_.tiers[t].scrubbing.Get(), 0u);
    for (const std::string& file : folders_[t]->Files()) {
      EXPECT_EQ(file.find(".tmp-"), std::string::npos) << file;
      EXPECT_EQ(file.find(".aside-"), std::string::npos) << file;
    }
  }
}

void ScrubRig::Post(Event event) {
  MutexLock lock(&mu_);
  events_.push_back(std::move(event));
}

void ScrubRig::OnCompletions(std::span<tier::Completion> completions) {
  MutexLock lock(&mu_);
  for (auto& completion : completions) completions_.push_back(std::move(completion));
}

store::ChunkKey ScrubRig::KeyOf(uint32_t key) {
  store::ChunkKey out = store::SampleKey();
  out.prefix_hash = std::string(28, 'p') + std::to_string(1000 + key);
  return out;
}

std::filesystem::path ScrubRig::FileOf(size_t tier, uint32_t key) const {
  return root(tier) / store::ChunkPath(KeyOf(key).name_space, Key(key));
}

void ScrubRig::Make(size_t tier, uint32_t key, bool indexed) {
  const std::vector<std::byte> bytes = store::SampleFile(KeyOf(key), kScrubShape);
  std::filesystem::create_directories(FileOf(tier, key).parent_path());
  std::ofstream(FileOf(tier, key), std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  if (!indexed) return;
  const store::ChunkHeader header = store::SampleHeader(KeyOf(key), kScrubShape);
  index_.AddReplica({Key(key), store::SiblingsOf(KeyOf(key)), KeyOf(key).name_space, header.shape,
                     header.content, header.checksums},
                    TierId{static_cast<uint32_t>(tier)});
}

void ScrubRig::Flip(size_t tier, uint32_t key, bool header) {
  std::fstream file(FileOf(tier, key), std::ios::binary | std::ios::in | std::ios::out);
  const std::streamoff at = header ? 100 : static_cast<std::streamoff>(kHeaderBytes + 20 * kKiB);
  file.seekg(at);
  const auto byte = static_cast<char>(file.get() ^ 4);
  file.seekp(at);
  file.put(byte);
  ASSERT_TRUE(file.good());
}

bool ScrubRig::IsWhole(size_t tier, uint32_t key) const {
  const UniqueFd fd(open(FileOf(tier, key).c_str(), O_RDONLY | O_CLOEXEC));
  return fd.valid() && !store::FileIsDamaged(fd.get(), Key(key)).value_or(true);
}

TierSet ScrubRig::Holders(uint32_t key) const {
  const auto entry = index_.Find(Key(key));
  TierSet tiers;
  if (!entry) return tiers;
  for (const store::ContentCopy& copy : entry->copies) tiers = tiers | copy.tiers;
  return tiers;
}

std::shared_ptr<RecordingScrubSink> ScrubRig::Begin(TierSet tiers, uint64_t bytes_per_second) {
  auto sink = std::make_shared<RecordingScrubSink>();
  scrubber_->Begin({tiers, bytes_per_second, sink});
  return sink;
}

void ScrubRig::LoopUntil(const std::function<bool()>& condition) {
  const TimeNs deadline = Now() + kPatience;
  while (!condition()) {
    ASSERT_LT(Now(), deadline) << "waited in vain";
    Turn();
    std::this_thread::yield();
  }
  Turn();  // What was posted last.
}

ScrubProgress ScrubRig::Scrub(TierId tier) {
  const auto sink = Begin(TierSet::Of(tier));
  LoopUntil([&] { return sink->ended(); });
  EXPECT_TRUE(sink->end().ok()) << sink->end();
  return sink->Last(tier);
}

void ScrubRig::Turn() {
  std::vector<Event> events;
  std::vector<tier::Completion> completions;
  {
    MutexLock lock(&mu_);
    std::swap(events, events_);
    std::swap(completions, completions_);
  }
  for (Event& event : events) {
    if (on_event) on_event(event);
    if (auto* damaged = std::get_if<FileDamaged>(&event)) {
      scrubber_->OnDamaged(std::move(*damaged));
    } else if (auto* repaired = std::get_if<FileRepaired>(&event)) {
      scrubber_->OnRepaired(*repaired);
    } else if (std::holds_alternative<TierScrubbed>(event)) {
      scrubber_->OnTierScrubbed();
    } else {
      ADD_FAILURE() << "a scrub posts no such event";
    }
  }
  for (const tier::Completion& completion : completions) asides_->OnCompletion(completion, Now());
}

}  // namespace kvstream::engine
