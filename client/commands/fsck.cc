// kvstreamctl fsck.
#include <fcntl.h>

#include <cerrno>
#include <cstdio>

#include "client/commands/command.h"
#include "client/output.h"
#include "client/status_convert.h"
#include "server/base/unique_fd.h"
#include "server/fsck/tree_check.h"

namespace kvstream::ctl {
namespace {

google::protobuf::Struct ToStruct(const fsck::NamespaceFiles& files) {
  google::protobuf::Struct object;
  SetNumber(&object, "files", static_cast<double>(files.files));
  SetNumber(&object, "bytes", static_cast<double>(files.bytes));
  SetNumber(&object, "damaged", static_cast<double>(files.damaged));
  return object;
}

void PrintJson(const std::string& root, const fsck::TreeReport& report) {
  google::protobuf::Struct object = ToStruct(report.all);
  SetText(&object, "root", root);
  SetNumber(&object, "unreadable", static_cast<double>(report.unreadable));
  SetNumber(&object, "foreign", static_cast<double>(report.foreign));
  SetNumber(&object, "temporary", static_cast<double>(report.temporary));
  SetNumber(&object, "snapshots", static_cast<double>(report.snapshots));
  SetNumber(&object, "snapshots_unusable", static_cast<double>(report.snapshots_unusable));
  auto* spaces = (*object.mutable_fields())["namespaces"].mutable_struct_value();
  for (const auto& [id, files] : report.namespaces) {
    *(*spaces->mutable_fields())[ToHex(id)].mutable_struct_value() = ToStruct(files);
  }
  std::printf("%s\n", ToJson(object).c_str());
}

void PrintText(const std::string& root, const fsck::TreeReport& report) {
  std::vector<std::vector<std::string>> rows = {{"NAMESPACE", "FILES", "BYTES", "DAMAGED"}};
  for (const auto& [id, files] : report.namespaces) {
    rows.push_back({ToHex(id), FormatCount(files.files), FormatBytes(files.bytes),
                    FormatCount(files.damaged)});
  }
  if (rows.size() > 1) std::printf("%s\n", FormatTable(rows).c_str());
  std::printf(
      "%s: %s files, %s, %s damaged, %s unreadable, %s foreign, %s temporary, "
      "%s index snapshots, %s of them of no use\n",
      root.c_str(), FormatCount(report.all.files).c_str(), FormatBytes(report.all.bytes).c_str(),
      FormatCount(report.all.damaged).c_str(), FormatCount(report.unreadable).c_str(),
      FormatCount(report.foreign).c_str(), FormatCount(report.temporary).c_str(),
      FormatCount(report.snapshots).c_str(), FormatCount(report.snapshots_unusable).c_str());
}

}  // namespace

int RunFsck(const Command& command, Globals globals, const std::vector<std::string>& arguments) {
  fsck::CheckOptions options;
  std::vector<std::string> rest;
  if (auto code = ParseCommand(
          command, &globals, arguments,
          {FlagOption("--headers-only", "do not read the chunks' bytes", &options.headers_only)},
          &rest)) {
    return *code;
  }
  if (rest.size() != 1) return UsageError(command, "takes one DIRECTORY, a tier's root");
  const UniqueFd root(open(rest[0].c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return Fail(command, FromErrno(errno, "open", rest[0]), kFailed);
  const auto report =
      fsck::CheckTree(root.get(), options, [&](const std::string& path, const absl::Status& why) {
        std::fprintf(stderr, "%s/%s: %s\n", rest[0].c_str(), path.c_str(),
                     std::string(why.message()).c_str());
      });
  if (!report.ok()) return Fail(command, report.status(), kFailed);
  globals.json ? PrintJson(rest[0], *report) : PrintText(rest[0], *report);
  const bool sound =
      report->all.damaged == 0 && report->unreadable == 0 && report->snapshots_unusable == 0;
  return sound ? kDone : kFailed;
}

}  // namespace kvstream::ctl
