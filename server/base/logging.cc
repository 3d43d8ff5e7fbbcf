#include "server/base/logging.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <memory>
#include <string>

namespace kvstream {

void InitLogging() {
  auto logger = std::make_shared<spdlog::logger>(
      "kvstreamd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

bool SetLogLevel(std::string_view level) {
  for (auto known : {spdlog::level::trace, spdlog::level::debug, spdlog::level::info,
                     spdlog::level::warn, spdlog::level::err}) {
    const auto name = spdlog::level::to_string_view(known);
    if (level == std::string_view(name.data(), name.size()) ||
        (known == spdlog::level::warn && level == "warn")) {
      spdlog::set_level(known);
      return true;
    }
  }
  return false;
}

}  // namespace kvstream
