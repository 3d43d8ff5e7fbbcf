// kvstreamctl scrub.
#include <cstdio>

#include "client/admin.h"
#include "client/commands/command.h"
#include "client/output.h"

namespace kvstream::ctl {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// What a daemon may read in a second.
constexpr Range kMibPerSecond = {1, 16384};

void Print(const v1::ScrubProgress& progress, bool json) {
  if (json) {
    std::printf("%s\n", ToJson(progress).c_str());
  } else {
    std::printf("tier %s: %s%s files, %s, %s damaged, %s repaired, %s deleted, %s unreadable, "
                "%s foreign\n",
                progress.tier().c_str(), progress.done() ? "done, " : "",
                FormatCount(progress.files()).c_str(), FormatBytes(progress.bytes()).c_str(),
                FormatCount(progress.damaged()).c_str(), FormatCount(progress.repaired()).c_str(),
                FormatCount(progress.deleted()).c_str(), FormatCount(progress.unreadable()).c_str(),
                FormatCount(progress.foreign()).c_str());
  }
  std::fflush(stdout);
}

}  // namespace

int RunScrub(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  std::string tier;
  uint64_t mib_per_s = 0;
  std::vector<std::string> rest;
  if (auto code = ParseCommand(
          command, &globals, arguments,
          {TextOption("--tier", "NAME", "this one alone; else all, one after the other", &tier),
           NumberOption("--mib-per-s", "N",
                        "most that it reads in a second; else as the daemon's config says",
                        kMibPerSecond, &mib_per_s)},
          &rest)) {
    return *code;
  }
  if (!rest.empty()) return UsageError(command, "takes no argument \"" + rest[0] + "\"");
  uint64_t not_in_order = 0;
  const absl::Status ended =
      Admin(globals.socket, absl::Seconds(globals.timeout_s))
          .Scrub(tier, mib_per_s * kMiB, [&](const v1::ScrubProgress& progress) {
            Print(progress, globals.json);
            if (progress.done()) {
              not_in_order += progress.damaged() - progress.repaired() + progress.unreadable();
            }
            return true;
          });
  if (!ended.ok()) return Fail(command, ended, CodeForCall(ended));
  return not_in_order == 0 ? kDone : kFailed;
}

}  // namespace kvstream::ctl
