#include "client/once_call.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/errors.h"

#include "passes/base/status_macros.h"

namespace bucketd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFindPatience{3000};

// Whom to ask now.
absl::StatusOr<std::shared_ptr<ServerChannel>> Choose(ServerChannels& channels,
                                                      const OnceOptions& options,
                                                      milliseconds patience, ServerList& servers) {
  patience = std::min(patience, kFindPatience);
  ASSIGN_OR_RETURN(servers, channels.InOrder(options.about, patience));
  const auto only = std::find_if(servers.begin(), servers.end(), [&](const auto& server) {
    return server->target() == options.only;
  });
  if (only != servers.end()) return *only;
  if (channels.one()) return servers.front();
  absl::StatusOr<std::shared_ptr<ServerChannel>> found =
      FindOneOfSeveral(channels, options.about, patience, servers);
  if (found.ok()) return found;
  return MakeError(
      absl::StatusCode::kUnavailable, kUnreachable,
      absl::StrCat("nobody answers at ", channels.address(), ": ", found.status().message()));
}

}  // namespace

absl::Status CallOnce(ServerChannels& channels, const OnceOptions& options, absl::string_view name,
                      const Attempt& attempt, std::string* asked) {
  const auto until = steady_clock::now() + options.deadline;
  for (;;) {
    ServerList servers;
    ASSIGN_OR_RETURN(const std::shared_ptr<ServerChannel> at,
                     Choose(channels, options, Left(until), servers));
    if (asked != nullptr) *asked = at->target();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + Left(until));
    std::unique_ptr<CallWatch> watch;
    if (options.meets && !channels.one()) {
      watch = std::make_unique<CallWatch>(
          context, at, ServerList(servers.begin(), std::find(servers.begin(), servers.end(), at)));
    }
    const grpc::Status status = attempt(context, at->channel());
    if (IsAnswer(status)) at->Answered();
    if (status.ok()) return absl::OkStatus();
    if (watch != nullptr && watch->Elsewhere() != nullptr && !IsAnswer(status)) continue;
    absl::Status error = FromRpc(status, absl::StrCat(name, " at ", at->target()));
    if (IsGone(status)) at->Leave(RetryAfter(error).value_or(milliseconds(0)));
    const bool next = !channels.one() && options.only.empty() && Left(until) > milliseconds(0);
    if (!next || ReasonOf(error) != "DRAINING") return error;
  }
}

}  // namespace bucketd::client
