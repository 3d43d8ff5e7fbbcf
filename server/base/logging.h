// Logging to stderr, where journald and kubectl find it. One logger; a line says the event, then
// ids, sizes with units. Nothing is logged per chunk above trace.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace kvstream {

// Sets up the default spdlog logger. Call once, before any thread starts.
void InitLogging();

inline constexpr char kLogLevels[] = "trace, debug, info, warn or error";

// Changes the level while running. False for a word that is not one of kLogLevels.
bool SetLogLevel(std::string_view level);
// The word for the level in force.
std::string_view LogLevel();

}  // namespace kvstream
