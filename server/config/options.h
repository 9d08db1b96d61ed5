// Everything an operator can set. A new option is a field here and one row of the table in
// options.cc: that row makes its flag, its environment variable, its key in the configuration file,
// its line of --help and of --check, and its range.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "server/config/cost_options.h"

namespace bucketd {

// Of one graph. Larger: larger models; one upload may hold that much memory, decoding a few times
// as much.
struct GraphIntakeLimits {
  int64_t max_graph_bytes = int64_t{256} << 20;  // serialised, uncompressed
  int64_t max_graph_nodes = 2'000'000;
  int64_t max_inline_bytes = int64_t{256} << 10;  // of GetPlanRequest.graph.data
  int64_t max_chunk_bytes = int64_t{1} << 20;
  int64_t max_compression_ratio = 256;  // uncompressed / compressed, beyond the first MiB
  // Of all uploads and inline graphs together, uncompressed, while they arrive and are decoded.
  int64_t max_upload_bytes = int64_t{512} << 20;
  int32_t max_uploads = 64;  // streams at a time
};

// Of the program around the server.
struct ProcessOptions {
  std::string ready_file;
  int64_t exit_with_parent = 0;  // 0: no; 1: whoever the parent is; else its process id
  std::string log_level = "info";
  bool log_json = false;
};

// Of the listener: mutual TLS if all four files are named, plain TCP if none is. Where tokens are
// accepted, the callers' authorities may be left out.
struct TlsOptions {
  std::string certificate_file, key_file;  // the server's
  std::string client_ca_file;              // who signs callers' certificates
  std::string identities_file;             // server/identity/identities.h
  bool accept_tokens = false;  // of callers without certificates: server/identity/token.h
  // A connection lives no longer: callers then show their certificates anew.
  std::chrono::milliseconds connection_age{std::chrono::minutes(30)};

  bool on() const {
    return !certificate_file.empty() || !key_file.empty() || !client_ca_file.empty() ||
           !identities_file.empty() || accept_tokens;
  }
};

struct ServerOptions {
  std::string listen = "127.0.0.1:9460";  // unix:/path or HOST:PORT; port 0: any free one
  std::string http = "127.0.0.1:9461";    // "": no side port
  int32_t socket_mode = 0600;             // of a unix socket
  bool insecure = false;                  // allows listeners beyond loopback without TLS
  TlsOptions tls;
  std::string tenants_file;  // what each tenant may have (tenants/tenant_table.h); "": no bounds
  bool reuse_port = false;   // a second server may listen on the same TCP port
  // Who may call the Admin service: "local" (unix sockets and loopback), "remote" (whoever reaches
  // the port), "off".
  std::string admin = "local";

  // Of messages that arrive or belong to a call that waits, and of arriving graphs; what
  // intake.max_upload_bytes leaves of it is for messages.
  int64_t max_in_flight_bytes = int64_t{768} << 20;
  int32_t max_connections = 10'000;  // at a time, and no more than leave 256 files to be opened
  int32_t max_streams = 1024;        // calls at a time of one connection
  GraphIntakeLimits intake;
  int32_t upload_threads = 2;   // decode and verify graphs
  int32_t compute_slots = 0;    // plans computed at a time; 0: one a core, two at least
  int32_t compute_queue = 256;  // plans that wait for a slot
  // Callers that wait for a graph or a plan; graphs that were asked for.
  int32_t max_waiting = 8192;
  int64_t plan_cache_bytes = int64_t{256} << 20;
  int64_t graph_cache_bytes = int64_t{512} << 20;

  // How long a caller that was asked for a graph has to begin uploading before another is asked.
  std::chrono::milliseconds upload_lease{10'000};
  // An upload that sends nothing for this long is ended.
  std::chrono::milliseconds upload_stall{10'000};
  // So is one that brings fewer encoded bytes a second on average, or takes longer in all.
  int64_t upload_rate_bytes = 16 << 10;
  std::chrono::milliseconds upload_deadline{600'000};
  // What broke off is kept this long, so that it can go on where it stopped; 0: not at all.
  std::chrono::milliseconds upload_resume{60'000};
  // Rank agreement.
  int32_t max_jobs = 4096;              // in memory
  int32_t max_waiting_ranks = 262'144;  // calls that wait for the other ranks
  int64_t max_pins_per_tenant = 4096;   // plans, one a scope of a job
  // A job that was not heard of for this long is forgotten; its pins are not.
  std::chrono::milliseconds job_idle{std::chrono::hours(24)};
  std::chrono::milliseconds pin_ttl{std::chrono::hours(168)};  // of a pin since its last use

  // The longest that a caller without a deadline waits.
  std::chrono::milliseconds max_wait{600'000};
  // Drain: not ready, then `lame_duck` for load balancers to see it, then no new connections; calls
  // in flight have until `drain` after the start.
  std::chrono::milliseconds drain{15'000};
  std::chrono::milliseconds lame_duck{500};

  CostOptions costs;

  // The store: plans and pins outlive the process. "": in memory, for a server that belongs to a
  // run.
  std::string store_dir;
  int64_t store_bytes = int64_t{4} << 30;  // of plans with their keys; the file is somewhat larger
  // Plans not used for this long leave the store; 0: none do.
  std::chrono::milliseconds store_max_age{std::chrono::hours(720)};
  // Of who changed what: lines, and how long they are kept; 0: any time.
  int64_t audit_lines = 100'000;
  std::chrono::milliseconds audit_age{std::chrono::hours(2160)};

  // Replicas: servers of one store that share jobs and computations (server/cluster/). The address
  // at which the others reach this one; "": it shares nothing.
  std::string cluster_address;
  // A replica that was not heard of for this long is dead; the same on all of them. Shorter: its
  // jobs move sooner; longer: a store that stalls moves none.
  std::chrono::milliseconds cluster_dead{10'000};

  ProcessOptions process;

  // INVALID_ARGUMENT: every problem, one a line, each with the option's place. `place_of` says
  // where the option of that name was set; by default that is its flag, "--max-uploads".
  using PlaceOf = std::function<std::string(absl::string_view name)>;
  absl::Status Validate(const PlaceOf& place_of = {}) const;
};

struct OctalField {
  int32_t* value;
};
using OptionField =
    std::variant<std::string*, bool*, int32_t*, int64_t*, std::chrono::milliseconds*, OctalField>;

struct OptionRow {
  const char* name;   // "max-uploads": --max-uploads, BUCKETD_MAX_UPLOADS, max_uploads = 64
  const char* group;  // of --help
  const char* help;
  OptionField (*field)(ServerOptions& options);
  int64_t least = 0;  // of numbers; of times in the operator's unit
  int64_t most = std::numeric_limits<int64_t>::max();
  const char* choices = "";  // of strings, "a|b|c"; "": any
  bool bare = false;         // the flag may stand alone, which means true or 1; so may all bools'
};
// In the order of --help.
absl::Span<const OptionRow> OptionTable();

std::string FlagOf(const OptionRow& row);         // "--max-uploads"
std::string EnvironmentOf(const OptionRow& row);  // "BUCKETD_MAX_UPLOADS"
std::string KeyOf(const OptionRow& row);          // "max_uploads"
// Of a time: what operators write is in hours, seconds or milliseconds, as the name ends.
int64_t MillisecondsIn(const OptionRow& row);

// Sets one option from what an operator wrote; numbers of bytes may end in KiB, MiB, GiB or TiB.
// INVALID_ARGUMENT says what was expected, without saying where; ranges are Validate's.
absl::Status SetOption(const OptionRow& row, absl::string_view text, ServerOptions& options);
// What SetOption would read back, but for a password in a URL, which is not told.
std::string PrintOption(const OptionRow& row, const ServerOptions& options);

// "268435456", "256MiB", "10 GiB"; 1024 TiB at most. INVALID_ARGUMENT says what was expected.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

bool IsUnixAddress(const std::string& address);
// Of HOST:PORT: is HOST this machine's loopback?
bool IsLoopback(const std::string& address);
// A database's URL, and no folder.
bool IsDatabase(const std::string& store);

}  // namespace bucketd
