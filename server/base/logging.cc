#include "server/base/logging.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <array>
#include <memory>

namespace kvstream {
namespace {

struct Level {
  std::string_view word;
  spdlog::level::level_enum level;
};
constexpr std::array kLevels = {
    Level{"trace", spdlog::level::trace}, Level{"debug", spdlog::level::debug},
    Level{"info", spdlog::level::info}, Level{"warn", spdlog::level::warn},
    Level{"error", spdlog::level::err}};

}  // namespace

void InitLogging() {
  auto logger = std::make_shared<spdlog::logger>("kvstreamd",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

bool SetLogLevel(std::string_view level) {
  const auto at = std::find_if(kLevels.begin(), kLevels.end(),
                               [level](const Level& known) { return known.word == level; });
  if (at == kLevels.end()) return false;
  spdlog::set_level(at->level);
  return true;
}

std::string_view LogLevel() {
  const auto level = spdlog::get_level();
  return std::find_if(kLevels.begin(), kLevels.end() - 1,
                      [level](const Level& known) { return known.level == level; })
      ->word;
}

}  // namespace kvstream
