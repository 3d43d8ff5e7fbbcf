// What tests of the configuration share: texts that are complete, and what is said of others.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "server/config/config.h"

namespace kvstream::config {

inline constexpr char kSockets[] = "sockets { grpc: '/run/k.sock' }\n";
inline constexpr char kTier[] = "tiers { name: 'nvme' root: '/a' }\n";

// What ParseConfig says, a line each; empty when it says nothing.
inline std::vector<std::string> Complaints(const std::string& text) {
  const auto options = ParseConfig(text, "test");
  if (options.ok()) return {};
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::string> lines;
  std::istringstream all{std::string(options.status().message())};
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  return lines;
}

// The same for a valid config with `text` added.
inline std::vector<std::string> ComplaintsWith(const std::string& text) {
  return Complaints(std::string(kSockets) + kTier + text);
}

inline std::vector<std::string> ComplaintsWithTier(const std::string& field) {
  return Complaints(std::string(kSockets) + "tiers { name: 'nvme' root: '/a' " + field + " }");
}

}  // namespace kvstream::config
