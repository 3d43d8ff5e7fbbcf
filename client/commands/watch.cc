// kvstreamctl watch.
#include <algorithm>
#include <cstdio>

#include "client/admin.h"
#include "client/commands/command.h"
#include "client/output.h"

namespace kvstream::ctl {
namespace {

constexpr uint64_t kLinesPerHeading = 20;
// Of a column: "1023 MiB/s".
constexpr size_t kWidth = 10;

// Lines of figures under a heading that comes again now and then; conditions when they change.
class Lines {
 public:
  void Print(const v1::Status& now) {
    const std::vector<std::string> conditions(now.conditions().begin(), now.conditions().end());
    if (conditions != conditions_) {
      for (const std::string& condition : conditions) std::printf("  ! %s\n", condition.c_str());
      conditions_ = conditions;
      lines_ = 0;
    }
    std::vector<std::string> heading = {"UP", "STATE", "RUNNING", "STAGED", "DELIVERED", "STORED"};
    std::vector<std::string> row = {
        FormatCount(now.uptime_ms() / 1000) + " s",
        now.draining() ? "draining"
        : now.ready()  ? "ready"
                       : "not ready",
        FormatCount(now.operations().running()),
        FormatBytes(now.pool().staged_bytes()),
        Rate(now, now.operations().bytes_delivered(), last_.operations().bytes_delivered()),
        Rate(now, now.operations().bytes_stored(), last_.operations().bytes_stored())};
    for (int i = 0; i < now.tiers_size(); ++i) {
      const v1::TierStatus& tier = now.tiers(i);
      const v1::TierStatus before = i < last_.tiers_size() ? last_.tiers(i) : v1::TierStatus();
      heading.insert(heading.end(), {tier.name(), "READ", "WRITTEN"});
      row.insert(row.end(),
                 {StateName(tier.state()), Rate(now, tier.bytes_read(), before.bytes_read()),
                  Rate(now, tier.bytes_written(), before.bytes_written())});
    }
    if (lines_++ % kLinesPerHeading == 0) PrintRow(heading);
    PrintRow(row);
    std::fflush(stdout);
    last_ = now;
  }

 private:
  std::string Rate(const v1::Status& now, uint64_t bytes, uint64_t before) const {
    // The first one has nothing to compare with, and a restarted daemon counts anew.
    if (last_.boot_id() != now.boot_id() || now.uptime_ms() <= last_.uptime_ms()) return "-";
    const uint64_t ms = now.uptime_ms() - last_.uptime_ms();
    return FormatBytes((bytes - before) * 1000 / ms) + "/s";
  }

  static void PrintRow(const std::vector<std::string>& cells) {
    std::string line;
    for (const std::string& cell : cells) {
      line += std::string(kWidth - std::min(kWidth, cell.size()) + (line.empty() ? 0 : 2), ' ');
      line += cell;
    }
    std::printf("%s\n", line.c_str());
  }

  v1::Status last_;
  std::vector<std::string> conditions_;
  uint64_t lines_ = 0;
};

}  // namespace

int RunWatch(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  uint64_t interval_ms = 1000;
  uint64_t count = 0;
  std::vector<std::string> rest;
  if (auto code = ParseCommand(command, &globals, arguments,
                               {NumberOption("--interval", "MS", "between two lines (1000)",
                                             {100, 3600000}, &interval_ms),
                                NumberOption("--count", "N", "lines; else until interrupted",
                                             {1, uint64_t{1} << 40}, &count)},
                               &rest)) {
    return *code;
  }
  if (!rest.empty()) return UsageError(command, "takes no argument \"" + rest[0] + "\"");
  Lines lines;
  uint64_t shown = 0;
  Admin admin(globals.socket, absl::Seconds(globals.timeout_s));
  const absl::Status ended =
      admin.Watch(absl::Milliseconds(interval_ms), [&](const v1::Status& status) {
        if (globals.json) {
          std::printf("%s\n", ToJson(status).c_str());
          std::fflush(stdout);
        } else {
          lines.Print(status);
        }
        return ++shown != count;
      });
  return ended.ok() ? kDone : Fail(command, ended, CodeForCall(ended));
}

}  // namespace kvstream::ctl
