#include "tests/support/log_recorder.h"

#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/base/logging.h"

namespace kvstream::test {
namespace {

std::atomic<int> recorders{0};

}  // namespace

class LogRecorder::Sink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  size_t Count(std::string_view part) {
    std::lock_guard lock(mutex_);
    return static_cast<size_t>(
        std::count_if(lines_.begin(), lines_.end(),
                      [part](const std::string& line) { return line.find(part) != line.npos; }));
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    lines_.emplace_back(message.payload.data(), message.payload.size());
  }
  void flush_() override {}

  // Guarded by the base's mutex_.
  std::vector<std::string> lines_;
};

LogRecorder::LogRecorder() : sink_(std::make_shared<Sink>()), before_(spdlog::default_logger()) {
  auto logger = std::make_shared<spdlog::logger>("recorder", sink_);
  logger->set_level(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
  ++recorders;
}

LogRecorder::~LogRecorder() {
  spdlog::set_default_logger(before_);
  --recorders;
}

size_t LogRecorder::Count(std::string_view part) const { return sink_->Count(part); }

void LogErrorsOnly() {
  if (recorders == 0) SetLogLevel("error");
}

}  // namespace kvstream::test
