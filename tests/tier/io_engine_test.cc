// The I/O engines: which one a tier gets where io_uring is refused, what calls that hang in the
// kernel hold up, and in which order threads take work.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/clock.h"
#include "server/base/unique_fd.h"
#include "server/tier/thread_queue.h"
#include "tests/support/log_recorder.h"
#include "tests/tier/tier_harness.h"

namespace kvstream::tier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Makes a system call fail with `error` for this thread and all that it starts.
bool Refuse(uint32_t call, uint32_t error) {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(steps), steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

struct Refusal {
  const char* name;
  uint32_t call;
  uint32_t error;
};

class RefusedEngineTest : public testing::TestWithParam<Refusal> {
 protected:
  // Opens a tier on a thread that may not use io_uring.
  absl::StatusOr<std::unique_ptr<Tier>> OpenRefused(IoEngine engine) {
    TierOptions options;
    options.name = "test";
    options.root = folder_.path();
    options.io_engine = engine;
    absl::StatusOr<std::unique_ptr<Tier>> tier = absl::UnknownError("no filter");
    std::thread([&] {
      if (Refuse(GetParam().call, GetParam().error)) tier = OpenFileTier(options, {}, &recorder_);
    }).join();
    return tier;
  }

  test::LogRecorder log_;  // Before the threads that log.
  TemporaryFolder folder_;
  Recorder recorder_;
};

TEST_P(RefusedEngineTest, AutoTakesThreadsAndSaysWhy) {
  auto tier = OpenRefused(IoEngine::kAuto);
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_EQ((*tier)->facts().io_engine, "threads");
  EXPECT_THAT((*tier)->facts().engine_reason, HasSubstr("io_uring"));
  EXPECT_FALSE((*tier)->facts().registered_buffers);
  EXPECT_EQ(log_.Count("io_uring refused, using threads"), 1u);
  const Blocks file = Blocks::Pattern(300 * kBlockBytes, 1);
  const Blocks copy(file.size());
  const std::string path = "v1/aa/bb/cc/file.kv";
  (*tier)->Write({.ticket = Ticket{1},
                  .path = &path,
                  .header = file.Part(0, kBlockBytes),
                  .pieces = {file.Part(kBlockBytes, file.size() - kBlockBytes)}});
  recorder_.Await(1);
  const ReadRequest read{Ticket{2}, &path, 0, copy.size(), copy.data()};
  (*tier)->Read({&read, 1});
  recorder_.Await(2);
  EXPECT_EQ(copy.Copy(), file.Copy());
  EXPECT_TRUE((*tier)->Stop(Now() + 60 * kSecond));
}

TEST(UnregisteredTest, MemoryThatTheKernelDoesNotRegisterIsSaidOnceAndWhy) {
  const test::LogRecorder log;
  const TemporaryFolder folder;
  Recorder recorder;
  TierOptions options;
  options.name = "test";
  options.root = folder.path();
  options.io_engine = IoEngine::kUring;
  // Nobody may touch it.
  void* const memory = mmap(nullptr, kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto tier = OpenFileTier(options, {static_cast<std::byte*>(memory), kMiB}, &recorder);
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_FALSE((*tier)->facts().registered_buffers);
  EXPECT_EQ((*tier)->facts().registration_error, EFAULT);
  EXPECT_EQ(log.Count("memory not registered with io_uring, reads cost more CPU: tier=test errno=" +
                      std::to_string(EFAULT)),
            1u);
  EXPECT_TRUE((*tier)->Stop(Now() + 60 * kSecond));
  munmap(memory, kMiB);
}

TEST_P(RefusedEngineTest, UringThatWasAskedForIsAnError) {
  const auto tier = OpenRefused(IoEngine::kUring);
  EXPECT_FALSE(tier.ok());
  EXPECT_THAT(std::string(tier.status().message()), HasSubstr("io_uring"));
  EXPECT_THAT(folder_.Files(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Calls, RefusedEngineTest,
                         testing::Values(Refusal{"SetupNotPermitted", SYS_io_uring_setup, EPERM},
                                         Refusal{"SetupMissing", SYS_io_uring_setup, ENOSYS},
                                         Refusal{"SetupWithoutMemory", SYS_io_uring_setup, ENOMEM},
                                         Refusal{"EnterNotPermitted", SYS_io_uring_enter, EPERM},
                                         Refusal{"RegisterNotPermitted", SYS_io_uring_register,
                                                 EPERM}),
                         [](const auto& test) { return test.param.name; });

TEST(HungCallTest, HoldsNeitherOtherReadsNorTheStop) {
  // The tier may touch these for ever: they are never freed, and reachable for leak checks.
  static auto* const into = new Blocks(4 * kBlockBytes);
  static auto* const hung = new std::string("v1/hung.kv");
  static auto* const good = new std::string("v1/good.kv");
  const TemporaryFolder folder;
  Recorder recorder;
  TierOptions options;
  options.name = "test";
  options.root = folder.path();
  options.io_engine = IoEngine::kThreads;
  auto tier = OpenFileTier(options, {}, &recorder);
  ASSERT_TRUE(tier.ok()) << tier.status();
  const Blocks file = Blocks::Pattern(2 * kBlockBytes, 1);
  (*tier)->Write({.ticket = Ticket{1},
                  .path = good,
                  .header = file.Part(0, kBlockBytes),
                  .pieces = {file.Part(kBlockBytes, kBlockBytes)}});
  recorder.Await(1);
  // A pipe without a writer cannot be opened for reading until one comes.
  const std::string pipe = folder.path() + "/" + *hung;
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<ReadRequest> reads = {
      {Ticket{2}, hung, 0, kBlockBytes, into->data()},
      {Ticket{3}, good, 0, 2 * kBlockBytes, into->data() + 2 * kBlockBytes}};
  (*tier)->Read(reads);
  recorder.Await(2);
  EXPECT_EQ(recorder.completions()[1].ticket, Ticket{3});
  EXPECT_EQ(recorder.completions()[1].code, absl::StatusCode::kOk);
  EXPECT_FALSE((*tier)->Stop(Now() + 10 * kMillisecond));
  tier->reset();
  const UniqueFd writer(open(pipe.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(writer.valid());
  EXPECT_EQ(recorder.count(), 2u);
}

class ThreadQueueTest : public testing::Test {
 protected:
  void Start(uint32_t threads) {
    auto queue = ThreadQueue::Create(threads, "test");
    ASSERT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
    file_.Reset(open(Path("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file_.valid());
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void QueueRead(uint64_t user_data) {
    Operation read;
    read.kind = Operation::Kind::kRead;
    read.fd = file_.get();
    read.data = into_.data();
    read.length = kBlockBytes;
    EXPECT_TRUE(queue_->Queue(read, user_data));
  }
  void QueueOpen(const std::string& path, uint64_t user_data) {
    Operation open;
    open.kind = Operation::Kind::kOpen;
    open.fd = AT_FDCWD;
    open.path = path.c_str();
    open.open_flags = O_RDONLY | O_CLOEXEC;
    EXPECT_TRUE(queue_->Queue(open, user_data));
  }
  // The user data of the next `n` completions, in their order.
  std::vector<uint64_t> Take(size_t n) {
    std::vector<uint64_t> taken;
    while (taken.size() < n) {
      queue_->Submit(/*wait=*/true);
      IoQueue::Event events[2];
      for (size_t i = 0, got = queue_->Take(events); i < got; ++i) {
        taken.push_back(events[i].user_data);
        if (events[i].user_data >= kOpens && events[i].result >= 0) close(events[i].result);
      }
    }
    return taken;
  }

  // User data of opens.
  static constexpr uint64_t kOpens = 100;

  TemporaryFolder folder_;
  const Blocks into_{kBlockBytes};
  UniqueFd file_;
  std::unique_ptr<ThreadQueue> queue_;
};

TEST_F(ThreadQueueTest, OpensGoBeforeReads) {
  Start(1);
  const std::string path = Path("file");
  QueueRead(1);
  QueueRead(2);
  QueueOpen(path, kOpens);
  QueueOpen(path, kOpens + 1);
  EXPECT_THAT(Take(4), ElementsAre(kOpens, kOpens + 1, 1, 2));
}

TEST_F(ThreadQueueTest, HungOpensLeaveHalfOfTheThreadsToReads) {
  Start(4);
  const std::string pipe = Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (uint64_t i = 0; i < 8; ++i) QueueOpen(pipe, kOpens + i);
  for (uint64_t i = 0; i < 2; ++i) QueueRead(i);
  std::vector<uint64_t> reads = Take(2);
  EXPECT_THAT(reads, testing::UnorderedElementsAre(0, 1));
  const UniqueFd writer(open(pipe.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(Take(8).size(), 8u);
}

TEST_F(ThreadQueueTest, HungOpensLeaveAThreadToReadsThatComeLater) {
  Start(4);
  const std::string pipe = Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (uint64_t i = 0; i < 8; ++i) QueueOpen(pipe, kOpens + i);
  queue_->Submit(/*wait=*/false);
  for (uint64_t i = 0; i < 2; ++i) {
    QueueRead(i);
    EXPECT_THAT(Take(1), ElementsAre(i));
  }
  const UniqueFd writer(open(pipe.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(Take(8).size(), 8u);
}

TEST_F(ThreadQueueTest, PauseHoldsNoThreadAndWakeEndsTheWait) {
  Start(1);
  const std::string pipe = Path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  // The only thread waits for a writer.
  QueueOpen(pipe, kOpens);
  EXPECT_TRUE(queue_->QueueDelay(7));
  EXPECT_THAT(Take(1), ElementsAre(7));
  queue_->Wake();
  queue_->Submit(/*wait=*/true);
  IoQueue::Event event;
  EXPECT_EQ(queue_->Take({&event, 1}), 0u);
  const UniqueFd writer(open(pipe.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_THAT(Take(1), ElementsAre(kOpens));
}

}  // namespace
}  // namespace kvstream::tier
