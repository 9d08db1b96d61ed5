#include "server/config/options.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kDayMs = 86'400'000;

#define FIELD(member) [](ServerOptions& o) -> OptionField { return &o.member; }

constexpr OptionRow kRows[] = {
    // name, group, help, field, least, most, choices, bare
    {"listen", "Serving", "Where clients connect: unix:/path or HOST:PORT", FIELD(listen)},
    {"http", "Serving",
     "Side port for /metrics, /livez, /readyz, /statusz: HOST:PORT, \"\" for none. It has no TLS; "
     "where callers need certificates or tokens, /statusz is there on loopback alone",
     FIELD(http)},
    {.name = "socket-mode",
     .group = "Serving",
     .help = "Permissions of a unix socket, octal",
     .field = [](ServerOptions& o) -> OptionField { return OctalField{&o.socket_mode}; },
     .most = 0777},
    {"insecure", "Serving",
     "Allow listeners without TLS that other machines can reach: whoever reaches the port can ask "
     "for plans and fill the caches",
     FIELD(insecure)},
    {"tls-certificate-file", "Serving",
     "The server's certificate in PEM, followed by those between it and its authority. Callers "
     "then need certificates too, and the three files below are needed; all are read again when "
     "they change",
     FIELD(tls.certificate_file)},
    {"tls-key-file", "Serving", "Its private key in PEM, not encrypted", FIELD(tls.key_file)},
    {"tls-client-ca-file", "Serving",
     "Certificates in PEM of the authorities that sign callers' certificates",
     FIELD(tls.client_ca_file)},
    {"identities-file", "Serving",
     "Who is who: [[identity]] entries with names = [\"URI:...\", \"DNS:...\"] of callers' "
     "certificates, tenant = \"NAME\" (\"*\": any) and roles = [\"plan\", \"report\", "
     "\"promote\", \"admin\", \"peer\"] (of replicas); [[issuer]] entries say whose tokens count",
     FIELD(tls.identities_file)},
    {"accept-tokens", "Serving",
     "Callers may show a token (JSON Web Token: RS256, ES256, EdDSA) of an [[issuer]] of the "
     "identities file instead of a certificate; --tls-client-ca-file may then be left out",
     FIELD(tls.accept_tokens)},
    {"tenants-file", "Serving",
     "What each tenant may have: [[tenant]] entries with name = \"NAME\" and any of weight, pins, "
     "plan_bytes, graph_bytes, uploads, computations; [others] has those of all tenants without an "
     "entry, and each that an entry leaves out; read again when it changes",
     FIELD(tenants_file)},
    {"tls-connection-age-seconds", "Serving",
     "A TLS connection takes no new calls after this long, so that callers show their certificates "
     "anew",
     FIELD(tls.connection_age), 1, 86'400},
    {.name = "admin",
     .group = "Serving",
     .help =
         "Who may use the Admin service (bucketctl status, evict, disable and their kin): local "
         "(unix sockets and loopback), remote (whoever reaches the port), off. With TLS it is "
         "whoever has the role, unless off",
     .field = FIELD(admin),
     .choices = "local|remote|off"},
    {"reuse-port", "Serving",
     "Let a successor listen on the same TCP port before this server has ended", FIELD(reuse_port)},
    {"ready-file", "Serving",
     "Write {\"address\", \"http\", \"pid\"} as JSON to this file once serving",
     FIELD(process.ready_file)},
    {.name = "exit-with-parent",
     .group = "Serving",
     .help =
         "Stop when the process that started this one ends. --exit-with-parent=PID also refuses "
         "to start under any other parent",
     .field = FIELD(process.exit_with_parent),
     .most = 1 << 22,  // of Linux's process ids
     .bare = true},
    {"drain-seconds", "Serving", "After a signal, calls in flight have this long", FIELD(drain), 0,
     86'400},
    {"lame-duck-ms", "Serving",
     "Of which this long for load balancers to see that the server is not ready", FIELD(lame_duck),
     0, kDayMs},

    {"max-in-flight-bytes", "Limits",
     "Of all that is under way: graphs (max-upload-bytes of it) and messages (the rest)",
     FIELD(max_in_flight_bytes), 1},
    {"max-connections", "Limits",
     "At a time; beyond, or where files run out, the newest of the host that has most gives way",
     FIELD(max_connections), 1},
    {"max-streams", "Limits", "Calls at a time of one connection; more wait at the client",
     FIELD(max_streams), 1},
    {"max-graph-bytes", "Limits", "Of one serialised graph, uncompressed",
     FIELD(intake.max_graph_bytes), 1},
    {"max-graph-nodes", "Limits", "Of one graph", FIELD(intake.max_graph_nodes), 1,
     std::numeric_limits<int32_t>::max()},
    {"max-inline-bytes", "Limits", "Of a graph inside GetPlan, as sent",
     FIELD(intake.max_inline_bytes)},
    {"max-chunk-bytes", "Limits", "Of one message of an upload", FIELD(intake.max_chunk_bytes), 1},
    {"max-compression-ratio", "Limits", "Uncompressed to compressed bytes",
     FIELD(intake.max_compression_ratio), 1, 1'000'000},
    {"max-uploads", "Limits", "Upload streams at a time; beyond, the slowest gives way",
     FIELD(intake.max_uploads), 1},
    {"max-upload-bytes", "Limits",
     "Of all graphs that are arriving, with what decoding takes: up to 9 MiB each",
     FIELD(intake.max_upload_bytes), 1},
    {"upload-threads", "Limits", "Threads that decode and verify graphs", FIELD(upload_threads), 1,
     1024},
    {"upload-lease-ms", "Limits",
     "How long a caller that was asked for a graph has to begin; then another is asked",
     FIELD(upload_lease), 1, kDayMs},
    {"upload-stall-ms", "Limits",
     "An upload, or a report of costs, that is silent for this long is ended", FIELD(upload_stall),
     1, kDayMs},
    {"upload-rate-bytes", "Limits",
     "So is one that brings fewer bytes a second (as sent), once upload-stall-ms is used up",
     FIELD(upload_rate_bytes), 1},
    {"upload-deadline-seconds", "Limits", "And one that takes longer than this in all",
     FIELD(upload_deadline), 1, 86'400},
    {"upload-resume-ms", "Limits",
     "What broke off may go on where it stopped for this long; 0: not at all", FIELD(upload_resume),
     0, kDayMs},
    {"compute-slots", "Limits", "Plans computed at a time; 0: one a core, two at least",
     FIELD(compute_slots), 0, 1024},
    {"compute-queue", "Limits", "Plans that wait for a slot; beyond: OVERLOADED",
     FIELD(compute_queue)},
    {"max-waiting", "Limits",
     "Callers that wait for a graph or plan, and graphs asked for; beyond: OVERLOADED",
     FIELD(max_waiting), 1},
    {"max-jobs", "Limits", "Jobs whose ranks agree on plans, in memory", FIELD(max_jobs), 1},
    {"max-waiting-ranks", "Limits",
     "Calls that wait for the other ranks of their job; beyond: OVERLOADED",
     FIELD(max_waiting_ranks), 1},
    {"max-pins-per-tenant", "Limits",
     "Plans pinned for jobs, and jobs; beyond: those of the fewest ranks make room",
     FIELD(max_pins_per_tenant)},
    {"pin-ttl-hours", "Limits",
     "A job's pinned plans are kept this long after their last use; the clocks of servers that "
     "share a store may differ by less",
     FIELD(pin_ttl), 0, 87'600},
    {"job-idle-hours", "Limits",
     "A job that was not heard of for this long leaves the memory; its pins stay", FIELD(job_idle),
     0, 87'600},
    {"plan-cache-bytes", "Limits", "Computed plans kept in memory", FIELD(plan_cache_bytes)},
    {"graph-cache-bytes", "Limits", "Uploaded graphs kept in memory", FIELD(graph_cache_bytes)},

    {"store-dir", "Store",
     "Folder that keeps plans and pins when the server ends, e.g. /var/lib/bucketd; made if "
     "absent. Without one they are in memory",
     FIELD(store_dir)},
    {"store", "Store",
     "The same, or a database for servers on several machines: postgres://user@host:port/database; "
     "the later of both flags holds, and a file or the environment names one of them",
     FIELD(store_dir)},
    {"store-bytes", "Store", "Of plans; beyond, those used longest ago leave", FIELD(store_bytes),
     1},
    {"store-max-age-hours", "Store", "Plans not used for this long leave; 0: none do",
     FIELD(store_max_age), 0, 87'600},
    {"audit-lines", "Store",
     "Lines of the audit log (who changed what: bucketctl audit) that are kept of what "
     "operators do, and as many of what calls cause (generations, pins, reports); each tenant "
     "has its share, and beyond it loses its oldest",
     FIELD(audit_lines), 1, 100'000'000},
    {"audit-hours", "Store", "How long they are kept; 0: for any time", FIELD(audit_age), 0,
     87'600},

    {"cluster-address", "Replicas",
     "HOST:PORT of this server for others of the same store: ranks of a job may then come to any "
     "of them, and each plan is computed once. Without one the server shares the store and no more",
     FIELD(cluster_address)},
    {"cluster-dead-ms", "Replicas",
     "A replica that has not been heard of for this long has ended; the same on all of them",
     FIELD(cluster_dead), 1000, kDayMs},

    {"cost-quorum", "Costs", "Reporters that must have measured a class of links to be believed",
     FIELD(costs.quorum), 1, 1000},
    {"cost-move-ppm", "Costs",
     "How far fewer reporters may move a duration in one version, in parts per million",
     FIELD(costs.move_ppm), 0, 1'000'000'000},
    {"cost-quorum-move-ppm", "Costs", "How far a quorum may", FIELD(costs.quorum_move_ppm), 0,
     1'000'000'000},
    {"cost-auto-promote", "Costs",
     "Promote a proposal at once if a quorum measured all that moves and no bound cut it off",
     FIELD(costs.auto_promote)},
    {"cost-report-samples", "Costs", "Of one ReportCosts stream", FIELD(costs.max_report_samples),
     1, 1'000'000},
    {"cost-report-streams", "Costs", "ReportCosts streams at a time",
     FIELD(costs.max_report_streams), 1, 10'000},
    {"cost-samples", "Costs", "Measured samples held, of all profiles", FIELD(costs.max_samples), 1,
     10'000'000},
    {"cost-sample-days", "Costs", "Then a sample is forgotten", FIELD(costs.sample_days), 1, 3650},
    {"replan-gain", "Costs",
     "A job's new generation, whose cost profile `latest` has moved on, leaves its pinned plan for "
     "one that is faster by more than this share of a step, in parts per million; 1000000: never",
     FIELD(costs.replan_gain_ppm), 0, CostOptions::kNeverReplan},

    {.name = "log-level",
     .group = "Logging",
     .help = "trace, debug (a line a request), info, warn, error or off",
     .field = FIELD(process.log_level),
     .choices = "trace|debug|info|warn|error|off"},
    {"log-json", "Logging", "One JSON object a line", FIELD(process.log_json)},
};

#undef FIELD

// Sums and small multiples of them are numbers still.
constexpr int64_t kMostBytes = int64_t{1} << 50;

// What to multiply with; 1 if there is no suffix, which is then left alone.
int64_t TakeByteSuffix(absl::string_view& text) {
  constexpr std::array<const char*, 4> kSuffixes = {"KiB", "MiB", "GiB", "TiB"};
  int64_t factor = 1;
  for (const char* suffix : kSuffixes) {
    factor <<= 10;
    if (absl::EndsWith(text, suffix)) {
      text = absl::StripAsciiWhitespace(text.substr(0, text.size() - 3));
      return factor;
    }
  }
  return 1;
}

absl::Status NotA(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 200), "\" is no ", what));
}

absl::StatusOr<int64_t> Whole(absl::string_view text, bool is_bytes) {
  absl::string_view digits = absl::StripAsciiWhitespace(text);
  const int64_t factor = is_bytes ? TakeByteSuffix(digits) : 1;
  const int64_t most = is_bytes ? kMostBytes / factor : std::numeric_limits<int64_t>::max();
  int64_t value = 0;
  if (!absl::SimpleAtoi(digits, &value) || value > most || value < -most) {
    return NotA(is_bytes ? "number of bytes; expected e.g. 268435456 or 256MiB, 1024 TiB at most"
                         : "whole number",
                text);
  }
  return value * factor;
}

// Sets one kind of field from text.
struct Setter {
  const OptionRow& row;
  absl::string_view text;
  bool is_bytes = absl::EndsWith(row.name, "-bytes");

  absl::Status operator()(std::string* value) const {
    *value = std::string(text);
    return absl::OkStatus();
  }
  absl::Status operator()(bool* value) const {
    if (absl::SimpleAtob(text, value)) return absl::OkStatus();
    return NotA("yes or no; expected true or false", text);
  }
  absl::Status operator()(int64_t* value) const {
    if (row.bare && (text == "true" || text == "false")) {
      *value = text == "true" ? 1 : 0;
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(*value, Whole(text, is_bytes));
    return absl::OkStatus();
  }
  absl::Status operator()(int32_t* value) const {
    ASSIGN_OR_RETURN(const int64_t wide, Whole(text, is_bytes));
    if (wide != static_cast<int32_t>(wide)) return NotA("number of 32 bits", text);
    *value = static_cast<int32_t>(wide);
    return absl::OkStatus();
  }
  absl::Status operator()(milliseconds* value) const {
    const int64_t unit = MillisecondsIn(row);
    if (unit == 1) {
      ASSIGN_OR_RETURN(const int64_t whole, Whole(text, false));
      *value = milliseconds(whole);
      return absl::OkStatus();
    }
    const bool in_hours = unit > 1000;
    double number = 0;
    if (!absl::SimpleAtod(text, &number) || !(std::abs(number) < (in_hours ? 1e6 : 1e9))) {
      return NotA(in_hours ? "number of hours" : "number of seconds", text);
    }
    *value = milliseconds(std::llround(number * static_cast<double>(unit)));
    return absl::OkStatus();
  }
  absl::Status operator()(OctalField field) const {
    const bool octal =
        !text.empty() && text.size() <= 4 &&
        std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '7'; });
    if (!octal) return NotA("mode; expected three octal digits, e.g. 600", text);
    *field.value = static_cast<int32_t>(std::strtol(std::string(text).c_str(), nullptr, 8));
    return absl::OkStatus();
  }
};

// A URL may have one before the host, or as an option.
std::string WithoutPassword(const std::string& url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string::npos) return url;
  std::string shown = url;
  for (size_t at = shown.find("password="); at != std::string::npos;
       at = shown.find("password=", at + 9)) {
    const size_t end = std::min(shown.find('&', at), shown.size());
    shown.replace(at + 9, end - at - 9, "...");
  }
  const size_t begin = scheme + 3,
               host = shown.substr(0, shown.find_first_of("/?", begin)).rfind('@');
  const size_t colon = shown.find(':', begin);
  if (host != std::string::npos && colon < host) shown.erase(colon, host - colon);
  return shown;
}

struct Printer {
  const OptionRow& row;

  std::string operator()(const std::string* value) const { return WithoutPassword(*value); }
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const int32_t* value) const { return absl::StrCat(*value); }
  std::string operator()(const int64_t* value) const { return absl::StrCat(*value); }
  std::string operator()(const milliseconds* value) const {
    // To the millisecond, however many seconds or hours.
    return absl::StrFormat(
        "%.15g", static_cast<double>(value->count()) / static_cast<double>(MillisecondsIn(row)));
  }
  std::string operator()(OctalField field) const { return absl::StrFormat("%o", *field.value); }
};

}  // namespace

absl::Span<const OptionRow> OptionTable() { return kRows; }

std::string FlagOf(const OptionRow& row) { return absl::StrCat("--", row.name); }

int64_t MillisecondsIn(const OptionRow& row) {
  if (absl::EndsWith(row.name, "-hours")) return 3'600'000;
  return absl::EndsWith(row.name, "-seconds") ? 1000 : 1;
}

std::string KeyOf(const OptionRow& row) { return absl::StrReplaceAll(row.name, {{"-", "_"}}); }

std::string EnvironmentOf(const OptionRow& row) {
  return absl::StrCat("BUCKETD_", absl::AsciiStrToUpper(KeyOf(row)));
}

absl::Status SetOption(const OptionRow& row, absl::string_view text, ServerOptions& options) {
  return std::visit(Setter{row, text}, row.field(options));
}

std::string PrintOption(const OptionRow& row, const ServerOptions& options) {
  // Rows give access to read and to write; this only reads.
  return std::visit(Printer{row}, row.field(const_cast<ServerOptions&>(options)));
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) { return Whole(text, true); }

}  // namespace bucketd
