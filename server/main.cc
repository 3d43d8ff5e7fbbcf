// kvstreamd: flags, config, signals.
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "server/base/logging.h"
#include "server/base/unique_fd.h"
#include "server/config/config.h"
#include "server/daemon.h"
#include "server/preflight.h"

namespace kvstream {
namespace {

constexpr char kUsage[] =
    "Usage: kvstreamd --config FILE [--check_config | --preflight] [--log_level LEVEL]\n"
    "\n"
    "Keeps the KV cache of inference engines on this node's storage tiers.\n"
    "\n"
    "  --config FILE      the configuration, protobuf text format (config/kvstream.textproto\n"
    "                     explains every field); KVSTREAMD_CONFIG is used when absent\n"
    "  --check_config     check the configuration alone, not the machine, report every error, and\n"
    "                     exit\n"
    "  --preflight        print what the configuration needs of this machine, what there is and "
    "how\n"
    "                     to raise it, and exit: 0 when the limits allow a start, else 1\n"
    "  --log_level LEVEL  trace, debug, info, warn or error; overrides the configuration\n"
    "  --version          print the version and exit\n"
    "  --help             print this and exit\n"
    "\n"
    "SIGTERM and SIGINT drain and stop. Exit codes: 0 stopped cleanly, 1 could not start or\n"
    "run, 2 bad usage or configuration.\n";

struct Flags {
  std::string config;
  std::string log_level;
  bool check_config = false;
  bool preflight = false;
};

// Exits for --help, --version and bad usage.
Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  if (const char* env = std::getenv("KVSTREAMD_CONFIG")) flags.config = env;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto value = [&](std::string_view name, std::string* out) {
      if (arg.substr(0, name.size() + 1) == std::string(name) + "=") {
        *out = arg.substr(name.size() + 1);
        return true;
      }
      if (arg != name || i + 1 >= argc) return false;
      *out = argv[++i];
      return true;
    };
    if (arg == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    } else if (arg == "--version") {
      std::printf("kvstreamd %s (CUDA: none)\n", kVersion);
      std::exit(0);
    } else if (arg == "--check_config") {
      flags.check_config = true;
    } else if (arg == "--preflight") {
      flags.preflight = true;
    } else if (!value("--config", &flags.config) && !value("--log_level", &flags.log_level)) {
      std::fprintf(stderr, "kvstreamd: unknown flag or missing value: %s\n%s", argv[i], kUsage);
      std::exit(2);
    }
  }
  if (flags.config.empty()) {
    std::fprintf(stderr, "kvstreamd: --config is required\n%s", kUsage);
    std::exit(2);
  }
  return flags;
}

// systemd's readiness protocol: one datagram to $NOTIFY_SOCKET, nothing when that is unset.
void NotifySystemd(const char* state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + std::strlen(path));
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sendto(fd.get(), state, std::strlen(state), MSG_NOSIGNAL,
         reinterpret_cast<const sockaddr*>(&address), length);
}

int Main(int argc, char** argv) {
  const Flags flags = ParseFlags(argc, argv);
  InitLogging();
  auto options = config::LoadConfig(flags.config);
  if (options.ok() && !flags.log_level.empty()) options->log_level = flags.log_level;
  if (options.ok() && !SetLogLevel(options->log_level)) {
    options = absl::InvalidArgumentError("--log_level: " + options->log_level + " is no level");
  }
  if (!options.ok()) {
    std::fprintf(stderr, "kvstreamd: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  if (flags.check_config) {
    std::printf("kvstreamd: %s is good\n", flags.config.c_str());
    return 0;
  }
  if (flags.preflight) {
    const Preflight preflight = CheckPreflight(*options);
    std::fputs(preflight.report.c_str(), stdout);
    return preflight.starts ? 0 : 1;
  }
  // Every thread inherits this mask: only the wait below sees the signals.
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  auto daemon = Daemon::Start(*options, gpu::OpenDriver);
  if (!daemon.ok()) {
    spdlog::error("cannot start: {}", std::string(daemon.status().message()));
    return 1;
  }
  NotifySystemd("READY=1");
  int signal = 0;
  sigwait(&stop, &signal);
  spdlog::info("stopping: signal={}", signal);
  NotifySystemd("STOPPING=1");
  if (!(*daemon)->Stop()) std::_Exit(0);  // A tier's reads may still land in the staging pool.
  daemon->reset();
  spdlog::info("stopped");
  return 0;
}

}  // namespace
}  // namespace kvstream

int main(int argc, char** argv) { return kvstream::Main(argc, argv); }
