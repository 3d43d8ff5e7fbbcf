// kvstreamctl: the operator's tool for kvstreamd.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/commands/command.h"

namespace kvstream::ctl {
namespace {

constexpr Command kCommands[] = {
    {"status", "", "Tells what the daemon is doing", "", RunStatus},
    {"put", "--namespace NAME --key TEXT FILE", "Stores a file as one chunk",
     "\nThe namespace is made of NAME and the file's size; the chunk's key is the XXH3-128\n"
     "digest of TEXT. A key that exists already keeps its bytes.\n",
     RunPut},
    {"get", "--namespace NAME --key TEXT --bytes SIZE [--out FILE]", "Reads a chunk back",
     "\nSIZE is the size of the file that was put. A miss ends with exit code 1.\n", RunGet},
    {"lookup", "--namespace NAME --bytes SIZE --key TEXT ...", "Tells which chunks could be read",
     "\nThe keys are taken as the chunks of one prefix, in their order.\n", RunLookup},
    {"replay", "(--trace FILE | --generate N) [options]",
     "Replays a request trace as an engine would, and verifies every byte that it reads",
     "\nEach request is looked up; the chunks that hit are read and verified; then, as after\n"
     "a forward pass, the rest is stored. Chunks hold what their ids say, so a wrong byte\n"
     "tells its origin. When the daemon goes away, the replay waits for it, connects again\n"
     "and repeats the step. The bytes of tiers are the daemon's own counters: other clients'\n"
     "reads and writes are in them.\n",
     RunReplay},
};

std::string Help(Globals* globals) {
  std::string help =
      "kvstreamctl [options] COMMAND [arguments]\n\n"
      "Talks to kvstreamd, the KV cache daemon of this node.\n\nCommands:\n";
  std::vector<Option> rows;
  for (const Command& command : kCommands) rows.push_back({command.name, "", command.summary, {}});
  help += OptionsHelp(rows);
  help += "\nkvstreamctl COMMAND --help tells more. Options, before or after the command:\n";
  help += OptionsHelp(GlobalOptions(globals));
  help +=
      "\nSizes are numbers of bytes, or end with KiB, MiB, GiB or TiB.\n"
      "\nExit codes:\n"
      "  0  done\n"
      "  1  failed: a miss, a dropped chunk, wrong bytes, a file that cannot be read or written\n"
      "  2  wrong usage\n"
      "  3  the daemon is not there, does not answer, or went away\n";
  return help;
}

int Main(const std::vector<std::string>& arguments) {
  Globals globals;
  const char* socket = std::getenv("KVSTREAMD_SOCKET");
  globals.socket =
      socket != nullptr && socket[0] != '\0' ? socket : "/run/kvstreamd/kvstreamd.sock";
  auto rest = ParseOptions(arguments, GlobalOptions(&globals), Positionals::kStop);
  if (!rest.ok()) {
    std::fprintf(stderr, "kvstreamctl: %s (see kvstreamctl --help)\n",
                 std::string(rest.status().message()).c_str());
    return kUsage;
  }
  if (rest->empty()) {
    if (!globals.help) {
      std::fputs("kvstreamctl: no command (see kvstreamctl --help)\n", stderr);
      return kUsage;
    }
    std::fputs(Help(&globals).c_str(), stdout);
    return kDone;
  }
  for (const Command& command : kCommands) {
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
