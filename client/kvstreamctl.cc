// kvstreamctl: the operator's tool for kvstreamd.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/commands/command.h"

namespace kvstream::ctl {
namespace {

std::vector<Option> MainOptions(Globals* globals, bool* version) {
  std::vector<Option> options = GlobalOptions(globals);
  options.push_back(FlagOption("--version", "print the version", version));
  return options;
}

std::string Help(Globals* globals) {
  std::string help =
      "kvstreamctl [options] COMMAND [arguments]\n\n"
      "Talks to kvstreamd, the KV cache daemon of this node.\n\nCommands:\n";
  std::vector<Option> rows;
  for (const Command& command : Commands()) rows.push_back({command.name, "", command.summary, {}});
  help += OptionsHelp(rows);
  help += "\nkvstreamctl COMMAND --help tells more. Options, before or after the command:\n";
  bool version = false;
  help += OptionsHelp(MainOptions(globals, &version));
  help +=
      "\nSizes are numbers of bytes, or end with KiB, MiB, GiB or TiB.\n"
      "\nExit codes:\n"
      "  0  done\n"
      "  1  failed: a miss, a dropped chunk, wrong bytes, a file that cannot be read or written\n"
      "  2  wrong usage\n"
      "  3  the daemon is not there, does not answer, drains, or went away\n";
  return help;
}

int Main(const std::vector<std::string>& arguments) {
  Globals globals;
  const char* socket = std::getenv("KVSTREAMD_SOCKET");
  globals.socket =
      socket != nullptr && socket[0] != '\0' ? socket : "/run/kvstreamd/kvstreamd.sock";
  bool version = false;
  auto rest = ParseOptions(arguments, MainOptions(&globals, &version), Positionals::kStop);
  if (!rest.ok()) {
    std::fprintf(stderr, "kvstreamctl: %s (see kvstreamctl --help)\n",
                 std::string(rest.status().message()).c_str());
    return kUsage;
  }
  if (version) {
    std::printf("kvstreamctl %s\n", KVSTREAM_VERSION);
    return kDone;
  }
  if (rest->empty()) {
    if (!globals.help) {
      std::fputs("kvstreamctl: no command (see kvstreamctl --help)\n", stderr);
      return kUsage;
    }
    std::fputs(Help(&globals).c_str(), stdout);
    return kDone;
  }
  for (const Command& command : Commands()) {
    if (rest->front() == command.name) {
      return command.run(command, globals, {rest->begin() + 1, rest->end()});
    }
  }
  std::fprintf(stderr, "kvstreamctl: no command \"%s\" (see kvstreamctl --help)\n",
               rest->front().c_str());
  return kUsage;
}

}  // namespace

}  // namespace kvstream::ctl

int main(int argc, char** argv) { return kvstream::ctl::Main({argv + 1, argv + argc}); }
