// What tests of starting share: a daemon that runs, and others beside it that may be refused.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/log_recorder.h"
#include "tests/support/test_daemon.h"

namespace kvstream {

class StartTest : public testing::Test {
 protected:
  absl::Status StartWith(const std::function<void(config::Options&)>& change) {
    config::Options options = daemon_.options();
    options.grpc_socket += "2";
    options.handoff_socket += "2";
    change(options);
    auto daemon = StartWithoutGpus(options);
    if (daemon.ok()) {
      EXPECT_TRUE((*daemon)->Stop());
    }
    return daemon.status();
  }

  void ExpectRefused(const absl::Status& status, const std::string& named) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(named), absl::string_view::npos) << status;
    // The first daemon is not disturbed.
    Worker worker(daemon_.socket());
    EXPECT_TRUE(worker.Put({next_key_}).ok());
    EXPECT_EQ(worker.Get({next_key_++}).leading_valid(), 1u);
  }

  test::LogRecorder log_;  // Before the threads that log.
  TestDaemon daemon_;
  TempDir spare_;
  uint64_t next_key_ = 1;
};

}  // namespace kvstream
