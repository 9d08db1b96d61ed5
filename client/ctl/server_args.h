// What the subcommands that talk to a running server share.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/admin_client.h"
#include "client/cli/command_line.h"
#include "client/client_tls.h"
#include "client/ctl/command.h"

#include "passes/io/message_json.h"

namespace bucketd::ctl {

struct ServerArgs {
  std::string address = "127.0.0.1:9460";
  client::ClientTls tls;
  bool json = false;
};

// --server (else BUCKETD_ADDRESS, else the default), --json, and the files of TLS (tls_flags.h).
void AddServerArgs(const Command& command, ServerArgs& args);
inline client::AdminClient AdminOf(const ServerArgs& args) {
  return client::AdminClient(args.address, args.tls);
}

// Report (command.h) for errors of a server: 3 if nobody answered, and where to look; 2 if it did
// not understand what was asked, else 1.
int ReportCall(const absl::Status& status);

// What a server answered, as text or with --json; or the error. How to exit.
template <typename Response, typename Text>
int ShowCall(const ServerArgs& args, const absl::StatusOr<Response>& answer, const Text& text) {
  if (!answer.ok()) return ReportCall(answer.status());
  std::fputs((args.json ? MessageJson(*answer) : ForTerminal(text(*answer))).c_str(), stdout);
  return kDone;
}

// Which plans: --key, --graph, --tenant, --not-used-for. All that are given must hold.
struct SelectionArgs {
  std::string key, graph, not_used_for;
  std::optional<std::string> tenant;
};
void AddSelectionArgs(const Command& command, SelectionArgs& args);
absl::StatusOr<v1::PlanSelection> SelectionOf(const SelectionArgs& args);

// "90s", "15m", "12h", "30d" in milliseconds. OUT_OF_RANGE says what was expected.
absl::Status ParseSpan(const std::string& text, int64_t& milliseconds);

// One line for each replica that did not answer: what that means here.
std::string NotReachedText(const google::protobuf::RepeatedPtrField<v1::NotReached>& replicas,
                           absl::string_view meaning);

int64_t NowMs();
// "3 min 5 s ago"; "-" for 0.
std::string Ago(int64_t when_ms);
// The first letters of a digest, enough to tell a few thousand apart.
std::string Short(absl::string_view hex);

}  // namespace bucketd::ctl
