// A machine that has no more threads: the start is refused, whichever thread it is that cannot be
// had, and leaves nothing behind. Threads of gRPC's own are not among them: without one it ends the
// process.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <string>
#include <string_view>

#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace {

// Threads that std::thread may still begin.
std::atomic<int> threads_left{INT_MAX};

bool IsStandardLibrary(const void* code) {
  Dl_info info{};
  return dladdr(code, &info) != 0 &&
         std::string_view(info.dli_fname).find("libstdc++") != std::string_view::npos;
}

}  // namespace

// In the place of the C library's, for all that this program loads.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*work)(void*), void* argument) noexcept {
  static const auto real =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (IsStandardLibrary(__builtin_return_address(0)) && threads_left.fetch_sub(1) <= 0) {
    return EAGAIN;
  }
  return real(thread, attributes, work, argument);
}

namespace kvstream {
namespace {

TEST(StartThreadsTest, WithoutAThreadTheStartIsRefusedWhicheverItIs) {
  const test::LogRecorder log;
  TempDir dir;
  config::Options options;
  {
    const TestDaemon daemon;
    options = daemon.options();
  }
  options.grpc_socket = dir.path() / "sock";
  options.handoff_socket = dir.path() / "handoff";
  for (config::TierOptions& tier : options.tiers) {
    tier.root = dir.path() / tier.name;
    tier.io_threads = 2;
    std::filesystem::create_directory(tier.root);
  }
  int refused = 0;
  for (;; ++refused) {
    ASSERT_LT(refused, 1000);
    threads_left = refused;
    auto daemon = Daemon::Start(options, [] { return gpu::OpenFakeDriver(1); });
    threads_left = INT_MAX;
    if (daemon.ok()) {
      EXPECT_TRUE((*daemon)->Stop());
      break;
    }
    EXPECT_EQ(daemon.status().code(), absl::StatusCode::kResourceExhausted) << refused;
    EXPECT_THAT(std::string(daemon.status().message()), testing::HasSubstr("thread")) << refused;
  }
  // Four of each tier's lanes and their probes, housekeeping, a GPU's two, copies, the loop and so
  // on: or the start above was not what was refused.
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace kvstream
