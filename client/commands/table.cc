// The commands of kvstreamctl.
#include "client/commands/command.h"

namespace kvstream::ctl {
namespace {

constexpr Command kCommands[] = {
    {"status", "", "Tells what the daemon is doing", "", RunStatus},
    {"watch", "[--interval MS] [--count N]",
     "Tells what the daemon is doing, a line every interval",
     "\nRates are those since the line before. With --json each line is a status object.\n",
     RunWatch},
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
    {"tier", "NAME out|in", "Takes a tier out of service or brings it back",
     "\nA tier that is out starts no reads and no writes; what only it holds is a miss until it\n"
     "is back. The daemon forgets this when it restarts.\n",
     RunTier, "out in"},
    {"scrub", "[--tier NAME] [--mib-per-s N]",
     "Reads every chunk file of the tiers and repairs what is damaged",
     "\nA damaged file is written anew from another tier that has it; one of which no other\n"
     "tier has a whole copy is deleted. What could not be read just now, and what is no chunk\n"
     "file of this version, is counted and left alone. A line comes about every second and\n"
     "when a tier is done; with --json each is an object. It runs until all files are read:\n"
     "--timeout does not limit it. A tier that is out, or does not answer, is waited for\n"
     "for a minute. Ends with exit code 1 when a damaged file is not repaired, a file could\n"
     "not be read, another client's scrub runs, or there is no such tier; with 3 when a tier\n"
     "was not scrubbed to its end, or did not open, or the daemon is gone. To interrupt it\n"
     "ends the scrub; what it has done stays.\n",
     RunScrub},
    {"ls", "", "Tells what each namespace has, by tier, and when it was used",
     "\nFILES and BYTES of a tier are this node's own; OTHERS' are files of other nodes that this\n"
     "one has heard of. LAST USED is how long ago the last of its chunks was used, OLDEST the\n"
     "one that nobody has used for longest. A namespace that no engine has registered since\n"
     "the daemon's start has no name.\n",
     RunLs},
    {"evict", "(--namespace-id HEX | --all) [options]",
     "Gives chunks up: their files on every tier, and their copies in the pool",
     "\nOnly chunks for which all that is said is true; ls tells the ids. --prefix is a chunk's\n"
     "prefix hash, as lookup prints it: that chunk goes and all that is known to come after\n"
     "it. Leased chunks, and those that are still to be written, stay. --timeout does not\n"
     "limit it; to interrupt it does not end it. Ends with exit code 1 when a tier does not\n"
     "delete.\n",
     RunEvict},
    {"warm", "--namespace-id HEX [--salt TEXT] FILE",
     "Reads chunks into the staging pool, where they stay while there is room",
     "\nFILE has a prefix hash a line, in hexadecimal digits; - is standard input. All groups\n"
     "and shards of each are read. What is not there is counted and passed over. An engine\n"
     "must have registered the namespace since the daemon's start.\n",
     RunWarm},
    {"fsck", "[--headers-only] DIRECTORY",
     "Reads the chunks in a tier's directory, and tells which are damaged",
     "\nAnd its index snapshots; without the daemon, and nothing is changed: the daemon's scrub "
     "repairs. Damaged files\n"
     "and those that cannot be read are named on standard error, and end it with exit code 1,\n"
     "as does an index snapshot that a start would not use. Temporary files are of writes that\n"
     "run, or were broken off; names that are none of KVStream's are counted as foreign.\n",
     RunFsck},
    {"drain", "[--timeout-ms MS]",
     "Makes the daemon refuse new operations and write what is staged",
     "\nEnds with exit code 1 when that was not done in time. The daemon goes on draining\n"
     "until it is stopped.\n",
     RunDrain},
    {"log-level", "LEVEL", "Changes what the daemon logs, until it restarts",
     "\nLEVEL is trace, debug, info, warn or error.\n", RunLogLevel, "trace debug info warn error"},
    {"completion", "bash|zsh", "Prints a completion script for a shell",
     "\nTo use it now: source <(kvstreamctl completion bash)\n", RunCompletion, "bash zsh"},
};

}  // namespace

std::span<const Command> Commands() { return kCommands; }

}  // namespace kvstream::ctl
