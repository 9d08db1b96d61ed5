#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/ctl/command.h"
#include "client/ctl/server_args.h"
#include "client/render/table.h"

namespace bucketd::ctl {
namespace {

struct AuditArgs {
  ServerArgs server;
  std::optional<std::string> tenant;
  std::string who, what, since;
  int32_t limit = 100;
};

std::string When(int64_t when_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%E3S", absl::FromUnixMillis(when_ms),
                          absl::UTCTimeZone());
}

std::string From(const v1::AuditEntry& entry) {
  if (entry.who().empty()) return entry.peer().empty() ? "-" : entry.peer();
  return entry.peer().empty() ? entry.who() : absl::StrCat(entry.who(), " from ", entry.peer());
}

std::string WhatChanged(const v1::AuditEntry& entry) {
  if (entry.before().empty()) return entry.after();
  return absl::StrCat(entry.before(), " -> ", entry.after().empty() ? "nothing" : entry.after());
}

std::string AuditText(const v1::ListAuditResponse& audit) {
  Table table("llllll", {"when (UTC)", "who", "tenant", "what", "about", "change"});
  for (const v1::AuditEntry& entry : audit.entries()) {
    table.AddRow({When(entry.when_ms()), From(entry), entry.tenant().empty() ? "-" : entry.tenant(),
                  entry.what(), entry.subject(), WhatChanged(entry)});
  }
  std::string text = table.Text();
  if (audit.truncated()) absl::StrAppend(&text, "... and more: --limit, or a narrower choice\n");
  return text;
}

int Run(const AuditArgs& args) {
  v1::ListAuditRequest request;
  if (args.tenant) request.set_tenant(*args.tenant);
  request.set_who(args.who);
  request.set_what(args.what);
  request.set_limit(args.limit);
  if (!args.since.empty()) {
    int64_t span_ms = 0;
    const absl::Status parsed = ParseSpan(args.since, span_ms);
    if (!parsed.ok()) return ReportCall(parsed);
    request.set_since_ms(NowMs() - span_ms);
  }
  return ShowCall(args.server, AdminOf(args.server).ListAudit(request), AuditText);
}

}  // namespace

void AddAuditCommand(const Command& app) {
  const auto [command, args] =
      app.AddCommand<AuditArgs>("audit", "Who changed what: pins, profiles, the switch", Run);
  AddServerArgs(command, args.server);
  command.AddOption("--tenant", args.tenant,
                    "of this tenant; \"\": the default one, \"*\": what belongs to all");
  command.AddOption("--who", args.who, "whose name, or host, has this in it");
  command.AddOption(
      "--what", args.what,
      "generation, pin, keep, release, finish, displace, evict, disable, enable, import, measure, "
      "promote, rollback, repair, report or epochs");
  command.AddOption("--since", args.since, "not longer ago than this: 90s, 15m, 12h, 30d");
  command.AddOption("--limit", args.limit, "at most so many, the newest")
      .ShowDefault()
      .TypeName("N");
  command.Footer(
      "The newest first. A line is written with the change itself: where one is, so is the other.\n"
      "What changes by itself (plans kept and evicted, pins that expire) has none.\n"
      "Lines go after --audit-hours of the server, and beyond --audit-lines.\n"
      "  bucketctl audit --what promote --since 7d\n"
      "  bucketctl audit --tenant team-a --who ops");
}

}  // namespace bucketd::ctl
