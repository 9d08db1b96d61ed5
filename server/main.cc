// bucketd: configuration to options, one server, one orderly end.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "server/base/version.h"
#include "server/config/config.h"
#include "server/config/options.h"
#include "server/process/log.h"
#include "server/process/ready_file.h"
#include "server/process/service_manager.h"
#include "server/process/signals.h"
#include "server/process/steady_waits.h"
#include "server/server.h"

namespace bucketd {
namespace {

constexpr int kRefused = 1;
constexpr int kUsage = 2;

constexpr char kAbout[] =
    R"(bucketd plans the collectives of sharded training steps: which share a bucket, and when each
one runs. Clients send a graph once; every later job with that graph gets the same plan from memory.

  bucketd                                       on 127.0.0.1:9460; what is planned goes when it ends
  bucketd --store-dir /var/lib/bucketd          and keeps plans and pins there
  bucketd --listen unix:/run/bucketd/socket     for processes of one machine
  bucketd --listen 127.0.0.1:0                  any free port; the address is printed
  bucketd --listen 0.0.0.0:9460 --insecure      for a cluster whose network is trusted
  bucketd --listen 0.0.0.0:9460 --tls-certificate-file server.pem --tls-key-file server.key
          --tls-client-ca-file ca.pem --identities-file who.toml    for any other (mutual TLS)
  bucketd --config bucketd.toml --check         says what is in force and where it comes from

Every option is a flag (--max-uploads 64), a variable (BUCKETD_MAX_UPLOADS=64) and a key of the
configuration file (max_uploads = 64); a flag counts more than a variable, a variable more than the
file. Bytes may end in KiB, MiB, GiB or TiB. Look at it with bucketctl status, or with a browser at
the side port. It runs until SIGTERM or SIGINT, lets calls in flight end, and exits 0; a second
signal ends it at once. Exit codes: 0 done, 1 could not start, 2 usage.)";

bool MayStandAlone(const OptionRow& row) {
  ServerOptions options;
  return row.bare || std::holds_alternative<bool*>(row.field(options));
}

// For the help: "256MiB", which SetOption reads like the number.
std::string Shown(const OptionRow& row, const std::string& text) {
  int64_t bytes = 0;
  if (!absl::EndsWith(row.name, "-bytes") || !absl::SimpleAtoi(text, &bytes)) return text;
  for (const auto& [unit, shift] : {std::pair("GiB", 30), {"MiB", 20}, {"KiB", 10}}) {
    if (bytes > 0 && bytes % (int64_t{1} << shift) == 0) return absl::StrCat(bytes >> shift, unit);
  }
  return text;
}

std::string TypeOf(const OptionRow& row) {
  ServerOptions options;
  if (*row.choices != 0) return row.choices;
  for (const auto& [ending, type] : {std::pair("-bytes", "BYTES"),
                                     {"-ms", "MS"},
                                     {"-seconds", "S"},
                                     {"-hours", "HOURS"},
                                     {"-days", "DAYS"},
                                     {"-ppm", "PPM"},
                                     {"-mode", "OCTAL"},
                                     {"-dir", "FOLDER"},
                                     {"-file", "FILE"}}) {
    if (absl::EndsWith(row.name, ending)) return type;
  }
  return std::holds_alternative<std::string*>(row.field(options)) ? "ADDRESS" : "N";
}

struct CommandLine {
  std::string file;
  bool check = false;
  std::vector<std::string> texts;  // by row of OptionTable()
  std::vector<CLI::Option*> given;
};

void AddFlags(CLI::App& app, CommandLine& line) {
  app.set_version_flag("--version", std::string("bucketd ") + kServerVersion);
  app.add_option("--config", line.file, "Configuration file (TOML); also BUCKETD_CONFIG")
      ->type_name("FILE");
  app.add_flag(
      "--check", line.check,
      "Print the configuration, as a file that says where each value comes from, and exit: "
      "0, or 2 if it, or a certificate, key, identities or tenants file that it names, cannot be "
      "used");
  const ServerOptions defaults;
  line.texts.reserve(OptionTable().size());  // CLI11 keeps references
  for (const OptionRow& row : OptionTable()) {
    std::string& text = line.texts.emplace_back(PrintOption(row, defaults));
    CLI::Option* option = MayStandAlone(row) ? app.add_flag(FlagOf(row), text, row.help)
                                             : app.add_option(FlagOf(row), text, row.help)
                                                   ->default_str(Shown(row, text))
                                                   ->type_name(TypeOf(row));
    line.given.push_back(option->group(row.group));
  }
  app.allow_extras();  // LoadConfig knows more to say of them than CLI11
}

ConfigSources SourcesOf(const CLI::App& app, const CommandLine& line) {
  ConfigSources sources;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const size_t equals = variable.find('=');
    if (equals == std::string::npos || !absl::StartsWith(variable, "BUCKETD_")) continue;
    sources.environment[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  sources.file = line.file;
  const auto named = sources.environment.find("BUCKETD_CONFIG");
  if (sources.file.empty() && named != sources.environment.end()) sources.file = named->second;
  for (const CLI::Option* option : app.parse_order()) {  // --store and --store-dir set one thing
    const auto found = std::find(line.given.begin(), line.given.end(), option);
    if (found == line.given.end()) continue;
    const auto row = static_cast<size_t>(found - line.given.begin());
    sources.flags.emplace_back(OptionTable()[row].name, line.texts[row]);
  }
  for (const std::string& extra : app.remaining()) {
    if (!absl::StartsWith(extra, "--")) continue;  // a value of the one before
    sources.flags.emplace_back(extra.substr(2, extra.find('=') - 2), "");
  }
  return sources;
}

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "bucketd: %s\n", std::string(status.message()).c_str());
  return code;
}

void Notify(absl::string_view state) {
  const absl::Status told = NotifyServiceManager(state);
  if (!told.ok()) spdlog::warn("{}", told.ToString());
}

// What a server can be told, and few will mean.
void Warn(const ServerOptions& options) {
  if (options.insecure) {
    spdlog::warn("--insecure: {}",
                 options.tls.on() ? "the side port has no TLS" : "listeners have no TLS");
  }
  const std::string& address = options.cluster_address;
  const bool for_other_machines =
      !address.empty() && !IsUnixAddress(address) && !IsLoopback(address);
  if (for_other_machines && !IsDatabase(options.store_dir)) {
    spdlog::warn(
        "--cluster-address: replicas find each other in their store, and servers on other machines "
        "do not see the folder {}: name a database in --store",
        options.store_dir);
  }
}

int Serve(const ServerOptions& options) {
  const ProcessOptions& process = options.process;
  MakeWaitsSteady();
  const auto stop = StopSignals::Create(
      process.exit_with_parent == 1 ? getppid() : static_cast<pid_t>(process.exit_with_parent));
  if (!stop.ok()) return Fail(stop.status(), kRefused);
  const auto server = Server::Start(options);
  if (!server.ok()) return Fail(server.status(), kRefused);
  if (!process.ready_file.empty()) {
    const absl::Status written =
        WriteReadyFile(process.ready_file,
                       {{"address", (*server)->address()}, {"http", (*server)->http_address()}});
    if (!written.ok()) return Fail(written, kRefused);
  }
  const std::string& http = (*server)->http_address();
  std::printf("bucketd %s serves on %s%s%s\n", kServerVersion, (*server)->address().c_str(),
              http.empty() ? "" : ", side port http://", http.c_str());
  std::fflush(stdout);
  Warn(options);
  Notify(absl::StrCat("READY=1\nSTATUS=serves on ", (*server)->address()));

  const StopSignals::Cause cause = (*stop)->Wait();
  StopSignals::RestoreDefaults();
  Notify("STOPPING=1\nSTATUS=calls in flight are ending");
  spdlog::info("stopping: {}; calls in flight have {} s",
               cause == StopSignals::Cause::kSignal ? "signal" : "the parent process ended",
               static_cast<double>(options.drain.count()) / 1e3);
  if (!process.ready_file.empty()) std::remove(process.ready_file.c_str());
  (*server)->Shutdown();
  spdlog::info("stopped");
  return 0;
}

int Main(int argc, char** argv) {
  CommandLine line;
  CLI::App app(kAbout, "bucketd");
  AddFlags(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(e.what(), "\nSee bucketd --help.")),
                kUsage);
  }
  const std::vector<std::string> extras = app.remaining();
  if (!extras.empty() && !absl::StartsWith(extras[0], "--")) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", extras[0], "\"")),
                kUsage);
  }
  const absl::StatusOr<Config> config = LoadConfig(SourcesOf(app, line));
  if (!config.ok()) return Fail(config.status(), kUsage);
  const ProcessOptions& process = config->options.process;
  const absl::Status log = ConfigureLog("bucketd", process.log_level, process.log_json);
  if (!log.ok()) return Fail(log, kUsage);
  if (line.check) {
    const absl::Status checked = Server::Check(config->options);
    if (!checked.ok()) return Fail(checked, kUsage);
    std::fputs(PrintConfig(*config).c_str(), stdout);
    Warn(config->options);
    return 0;
  }
  return Serve(config->options);
}

}  // namespace
}  // namespace bucketd

int main(int argc, char** argv) { return bucketd::Main(argc, argv); }
