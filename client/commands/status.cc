// kvstreamctl status.
#include <cstdio>
#include <utility>

#include "client/commands/command.h"
#include "client/output.h"

namespace kvstream::ctl {
namespace {

// "GPU-" and the first group of digits.
constexpr size_t kShortUuid = 12;

std::string Rate(uint64_t bytes_per_second) {
  return bytes_per_second == 0 ? "-" : FormatBytes(bytes_per_second) + "/s";
}

void PrintTiers(const v1::Status& status) {
  std::vector<std::vector<std::string>> places = {
      {"TIER", "STATE", "ENGINE", "DIRECT", "ALIGNMENT", "REGISTERED", "ROOT"}};
  std::vector<std::vector<std::string>> traffic = {{"TIER", "READ", "WRITTEN", "READ RATE",
                                                    "WRITE RATE", "IN FLIGHT", "WINDOW", "BACKLOG",
                                                    "QUARANTINED"}};
  std::vector<std::vector<std::string>> room = {
      {"TIER", "CHUNK FILES", "BYTES", "GIVEN UP", "BYTES", "FREE", "OF", "LOOKED THROUGH"}};
  std::vector<std::vector<std::string>> faults = {
      {"TIER", "READ ERRORS", "WRITE ERRORS", "CORRUPT READS", "WRITES DROPPED"}};
  for (const v1::TierStatus& tier : status.tiers()) {
    places.push_back({tier.name(), StateName(tier.state()), tier.io_engine(),
                      tier.direct() ? "yes" : "no", FormatBytes(tier.alignment()),
                      tier.registered_buffers() ? "yes" : "no", tier.root()});
    traffic.push_back({tier.name(), FormatBytes(tier.bytes_read()),
                       FormatBytes(tier.bytes_written()), Rate(tier.read_rate()),
                       Rate(tier.write_rate()), FormatBytes(tier.in_flight_bytes()),
                       FormatBytes(tier.window_bytes()), FormatBytes(tier.write_backlog_bytes()),
                       FormatBytes(tier.quarantined_bytes())});
    const bool measured = tier.space_bytes() > 0;
    room.push_back({tier.name(), FormatCount(tier.chunk_files()), FormatBytes(tier.chunk_bytes()),
                    FormatCount(tier.files_evicted()), FormatBytes(tier.bytes_evicted()),
                    measured ? FormatBytes(tier.space_free_bytes()) : "-",
                    measured ? FormatBytes(tier.space_bytes()) : "-",
                    tier.restoring() ? "not yet" : "yes"});
    faults.push_back({tier.name(), FormatCount(tier.read_errors()),
                      FormatCount(tier.write_errors()), FormatCount(tier.corrupt_reads()),
                      FormatCount(tier.writes_dropped())});
  }
  for (const auto& table : {places, traffic, room, faults}) {
    std::printf("\n%s", FormatTable(table).c_str());
  }
}

void PrintGpus(const v1::Status& status) {
  if (status.gpus().empty()) return;
  std::vector<std::vector<std::string>> table = {
      {"GPU", "STATE", "REGIONS", "MAPPED", "IN", "OUT", "QUEUED", "NAME"}};
  for (const v1::GpuStatus& gpu : status.gpus()) {
    table.push_back({gpu.uuid().substr(0, kShortUuid),
                     !gpu.usable() ? "lost"
                     : gpu.hung()  ? "hung"
                                   : "ok",
                     FormatCount(gpu.regions()), FormatBytes(gpu.mapped_bytes()),
                     FormatBytes(gpu.bytes_in()), FormatBytes(gpu.bytes_out()),
                     FormatBytes(gpu.queued_bytes()), gpu.name()});
  }
  std::printf("\n%s", FormatTable(table).c_str());
}

std::string Gpus(const v1::Status& status) {
  if (status.gpus().empty()) return status.gpu_reason();
  const v1::RegionsStatus& regions = status.regions();
  return FormatCount(status.gpus_size()) + ", " + FormatCount(regions.open()) + " regions, " +
         FormatCount(regions.landing()) + " landing buffers of them with " +
         FormatCount(regions.parts_overdue()) + " parts overdue and " +
         FormatCount(regions.landing_timeouts()) + " timeouts";
}

void PrintRest(const v1::Status& status) {
  const v1::PoolStatus& pool = status.pool();
  const v1::SessionsStatus& sessions = status.sessions();
  const v1::OperationsStatus& operations = status.operations();
  const std::vector<std::vector<std::string>> rows = {
      {"DAEMON", ""},
      {"pool",
       FormatBytes(pool.used_bytes()) + " used of " + FormatBytes(pool.bytes()) + ", " +
           FormatBytes(pool.cache_bytes()) + " cached, " + FormatBytes(pool.staged_bytes()) +
           " to be written, " + FormatBytes(pool.reserved_bytes()) + " for reads alone" +
           (pool.huge_pages() ? ", huge pages" : "") + (pool.pinned_bytes() > 0 ? ", pinned" : "")},
      {"index", FormatCount(status.index().chunks()) + " chunks in " +
                    FormatBytes(status.index().bytes()) + " of memory, " +
                    FormatCount(status.index().namespaces()) + " namespaces"},
      {"sessions", FormatCount(sessions.open()) + " open, " + FormatCount(sessions.host_buffers()) +
                       " host buffers of " + FormatBytes(sessions.host_buffer_bytes()) + ", " +
                       FormatCount(sessions.leases()) + " leases on " +
                       FormatCount(sessions.leased_chunks()) + " chunks"},
      {"operations", FormatCount(operations.running()) + " running; so far " +
                         FormatCount(operations.lookups()) + " lookups, " +
                         FormatCount(operations.read_steps()) + " read steps, " +
                         FormatCount(operations.stores()) + " stores"},
      {"delivered", FormatCount(operations.chunks_delivered()) + " chunks, " +
                        FormatBytes(operations.bytes_delivered()) + ", of that " +
                        FormatBytes(operations.bytes_from_pool()) + " out of the pool; " +
                        FormatCount(operations.chunks_failed()) + " failed"},
      {"stored", FormatCount(operations.chunks_stored()) + " chunks, " +
                     FormatBytes(operations.bytes_stored()) + "; " +
                     FormatCount(operations.chunks_existed()) + " existed, " +
                     FormatCount(operations.chunks_dropped()) + " dropped, " +
                     FormatCount(operations.chunks_lost()) + " lost"},
      {"gpus", Gpus(status)},
      {"metrics", status.metrics_address().empty() ? "off" : status.metrics_address()},
  };
  std::printf("%s", FormatTable(rows).c_str());
}

}  // namespace

std::string StateName(v1::TierState state) {
  std::string name = v1::TierState_Name(state);
  name.erase(0, std::string("TIER_STATE_").size());
  for (char& c : name) c = static_cast<char>(c | 0x20);
  return name;
}

int RunStatus(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  if (auto code = ParseCommand(command, &globals, arguments, {}, &rest)) return *code;
  if (!rest.empty()) return UsageError(command, "takes no argument \"" + rest[0] + "\"");
  const auto status = FetchStatus(globals.socket, absl::Seconds(globals.timeout_s));
  if (!status.ok()) return Fail(command, status.status(), kUnreachable);
  if (globals.json) {
    std::printf("%s\n", ToJson(*status).c_str());
    return kDone;
  }
  std::printf("kvstreamd %s  %s  up %s s  boot %s\n", status->version().c_str(),
              status->draining() ? "draining"
              : status->ready()  ? "ready"
                                 : "not ready",
              FormatCount(status->uptime_ms() / 1000).c_str(),
              FormatHex(status->boot_id()).c_str());
  for (const std::string& condition : status->conditions()) {
    std::printf("  ! %s\n", condition.c_str());
  }
  PrintTiers(*status);
  PrintGpus(*status);
  std::printf("\n");
  PrintRest(*status);
  return kDone;
}

}  // namespace kvstream::ctl
