// Logging to stderr, where journald and kubectl find it. One logger; a line says the event, then
// ids, sizes with units. Nothing is logged per chunk above trace.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace kvstream {

// Sets up the default spdlog logger. Call once, before any thread starts.
void InitLogging();

// Changes the level while running: trace, debug, info, warn or error. False for another word.
bool SetLogLevel(std::string_view level);

}  // namespace kvstream
