#include "client/ctl/server_args.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/addresses.h"
#include "client/cli/tls_flags.h"
#include "client/errors.h"

#include "passes/base/status_macros.h"
#include "passes/base/words.h"

namespace bucketd::ctl {

namespace {

// What a script's failed command left would select all.
std::string WrongIfEmpty(const std::string& value) {
  return value.empty() ? "is empty, and would mean all plans" : "";
}

}  // namespace

void AddServerArgs(const Command& command, ServerArgs& args) {
  command
      .AddOption(
          "--server", args.address,
          "HOST:PORT, unix:/path or dns:///NAME:PORT of a running bucketd; of several with commas "
          "between, the first that answers")
      .Env("BUCKETD_ADDRESS")
      .Checked(client::WrongInAddresses)
      .ShowDefault()
      .TypeName("ADDRESS");
  AddJsonFlag(command, args.json);
  AddTlsFlags(command, {args.tls.ca, args.tls.certificate, args.tls.key, args.tls.token});
}

int ReportCall(const absl::Status& status) {
  const int exit = Report(status);
  if (exit == kUnavailable && client::ReasonOf(status) == "UNREACHABLE") {
    std::fputs(
        "Does bucketd run there? --server or BUCKETD_ADDRESS say where to ask, --tls-ca and "
        "its kin how.\n",
        stderr);
  }
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return kUnavailable;
    case absl::StatusCode::kInvalidArgument:
      return kUsage;
    case absl::StatusCode::kNotFound:
      return kRefused;
    default:
      return exit;
  }
}

absl::Status ParseSpan(const std::string& text, int64_t& milliseconds) {
  constexpr int64_t kMaxNumber = 1'000'000;
  constexpr std::pair<absl::string_view, int64_t> kSpans[] = {
      {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}};
  for (const auto& [unit, factor] : kSpans) {
    absl::string_view digits = text;
    int64_t number = 0;
    if (absl::ConsumeSuffix(&digits, unit) && absl::SimpleAtoi(digits, &number) && number >= 1 &&
        number <= kMaxNumber) {
      milliseconds = number * factor;
      return absl::OkStatus();
    }
  }
  return absl::OutOfRangeError(
      absl::StrCat("\"", text, "\" is no span of time; expected e.g. 90s, 15m, 12h or 30d"));
}

void AddSelectionArgs(const Command& command, SelectionArgs& args) {
  command
      .AddOption("--key", args.key,
                 "whose key begins with these hex digits, as bucketctl plans shows them")
      .Checked(WrongIfEmpty)
      .TypeName("HEX");
  command.AddOption("--graph", args.graph, "of the graph with this digest (bucketctl digest)")
      .Checked(WrongIfEmpty)
      .TypeName("HEX");
  command.AddOption("--tenant", args.tenant, "of this tenant; \"\": the default one");
  command.AddOption("--not-used-for", args.not_used_for, "that nobody used for so long: 12h, 30d")
      .Checked(WrongIfEmpty)
      .TypeName("SPAN");
}

absl::StatusOr<v1::PlanSelection> SelectionOf(const SelectionArgs& args) {
  v1::PlanSelection selection;
  if (args.tenant) selection.set_tenant(*args.tenant);
  selection.set_graph_digest(args.graph);
  selection.set_key_sha256(args.key);
  if (!args.not_used_for.empty()) {
    int64_t span = 0;
    RETURN_IF_ERROR(ParseSpan(args.not_used_for, span));
    selection.set_not_used_since_ms(NowMs() - span);
  }
  return selection;
}

std::string NotReachedText(const google::protobuf::RepeatedPtrField<v1::NotReached>& replicas,
                           absl::string_view meaning) {
  std::string text;
  for (const v1::NotReached& one : replicas) {
    absl::StrAppend(&text, "replica ", one.address(), ": ", one.why(), "; ", meaning, "\n");
  }
  return text;
}

int64_t NowMs() { return absl::ToUnixMillis(absl::Now()); }

std::string Ago(int64_t when_ms) {
  return when_ms == 0 ? "-" : absl::StrCat(SpanInWords(NowMs() - when_ms), " ago");
}

std::string Short(absl::string_view hex) { return std::string(hex.substr(0, 12)); }

}  // namespace bucketd::ctl
