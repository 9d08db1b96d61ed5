#include "client/retrying_client.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/channel.h"
#include "client/errors.h"

#include "passes/base/status_macros.h"

namespace bucketd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kReturns = 3;  // of each server that went away during one call

// `status`, which also says what went before it.
absl::Status After(const absl::Status& status, absl::string_view earlier) {
  absl::Status both(status.code(), absl::StrCat(status.message(), "; before: ", earlier));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { both.SetPayload(url, payload); });
  return both;
}

double Seconds(milliseconds time) { return static_cast<double>(time.count()) / 1000; }

}  // namespace

ServerList Route::Earlier() const {
  if (!meets_) return {};
  return {servers_.begin(), std::find(servers_.begin(), servers_.end(), at_)};
}

RetryingClient::RetryingClient(const std::string& address, const ClientOptions& options,
                               const ChannelOptions& channels)
    : options_(options), channels_(address, channels), breaker_(options.breaker) {}

std::string RetryingClient::Where(absl::string_view method) const {
  return absl::StrCat(method, " at ", channels_.address());
}

absl::Status RetryingClient::Call(Route& route, absl::string_view method, Time until,
                                  const Attempt& attempt) {
  for (size_t returns = 0;;) {
    bool gone = false;
    const absl::Status status = Once(route, method, until, attempt, gone);
    if (status.ok()) return status;
    if (Obey(route, status, method, until)) continue;
    if (!gone || returns >= kReturns * route.servers_.size()) return status;
    ++returns;
    RETURN_IF_ERROR(AwaitReturn(route, method, until, status));
  }
}

absl::Status RetryingClient::Once(Route& route, absl::string_view method, Time until,
                                  const Attempt& attempt, bool& gone) {
  const absl::Status status = TryOnce(route, method, until, attempt, gone);
  if (status.ok()) route.obeyed_.clear();
  if (ReasonOf(status) != kDeadline || route.obeyed_.empty()) return status;
  return After(status, route.obeyed_);
}

absl::Status RetryingClient::TryOnce(Route& route, absl::string_view method, Time until,
                                     const Attempt& attempt, bool& gone) {
  gone = false;
  RETURN_IF_ERROR(Admit(route, method, until));
  RETURN_IF_ERROR(Choose(route, std::min(options_.connect_timeout, Left(until))));
  if (!channels_.one() && !route.at_->met()) {
    RETURN_IF_ERROR(Find(route, method, until, /*probe=*/false));
  }
  RETURN_IF_ERROR(CheckTime(method, until));
  const milliseconds left = Left(until);
  const grpc::Status status = Attempted(route, until, attempt);
  if (IsAnswer(status)) {
    route.at_->Answered();
    Answered();
  } else if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
             left >= options_.probe_timeout) {
    NobodyAnswered();  // one that went away is not given up yet: AwaitReturn finds out
  }
  gone = !IsAnswer(status) && IsGone(status);
  return FromRpc(status, absl::StrCat(method, " at ", route.target()));
}

grpc::Status RetryingClient::Attempted(Route& route, Time until, const Attempt& attempt) {
  for (;;) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + Left(until));
    if (channels_.one()) return attempt(context, route.at_->channel());
    CallWatch watch(context, route.at_, route.Earlier());
    grpc::Status status = attempt(context, route.at_->channel());
    std::shared_ptr<ServerChannel> elsewhere = watch.Elsewhere();
    if (elsewhere == nullptr || IsAnswer(status)) return status;
    Take(route, std::move(elsewhere));
  }
}

Route RetryingClient::NewRoute(std::string about, bool meets) {
  Route route(std::move(about), meets);
  // An error is found again, and returned, by the first call.
  if (channels_.names_known()) Choose(route, milliseconds(0)).IgnoreError();
  return route;
}

absl::Status RetryingClient::Choose(Route& route, milliseconds patience) {
  if (route.at_ != nullptr && route.at_->Aside() == milliseconds(0)) return absl::OkStatus();
  absl::StatusOr<ServerList> servers = channels_.InOrder(route.about_, patience);
  if (absl::IsUnavailable(servers.status())) NobodyAnswered();
  RETURN_IF_ERROR(servers.status());
  route.servers_ = *std::move(servers);
  Take(route, Preferred(route.servers_).front());
  return absl::OkStatus();
}

void RetryingClient::Take(Route& route, std::shared_ptr<ServerChannel> server) {
  if (route.at_ != nullptr && route.at_ != server) ++moves_;
  route.at_ = std::move(server);
}

bool RetryingClient::Leave(Route& route, milliseconds least) {
  if (channels_.one()) return false;
  route.at_->Leave(least);
  const std::shared_ptr<ServerChannel> first = Preferred(route.servers_).front();
  const bool stands = first->Aside() == milliseconds(0);
  if (stands) Take(route, first);
  return stands;
}

absl::Status RetryingClient::CheckTime(absl::string_view method, Time until) const {
  if (steady_clock::now() < until) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, kDeadline,
                   absl::StrCat("no time left for ", Where(method)));
}

void RetryingClient::Answered() {
  if (!breaker_.Succeeded()) return;
  const std::lock_guard lock(logged_mutex_);
  logged_.clear();
}

void RetryingClient::NobodyAnswered() {
  if (!breaker_.Failed(steady_clock::now())) return;
  ++breaker_opens_;
  Degraded("breaker", "does not answer; calls end at once until it does");
}

absl::Status RetryingClient::Admit(Route& route, absl::string_view method, Time until) {
  RETURN_IF_ERROR(CheckTime(method, until));
  const CircuitBreaker::Admission admission = breaker_.Admit(steady_clock::now());
  if (admission == CircuitBreaker::Admission::kCall) return absl::OkStatus();
  if (admission == CircuitBreaker::Admission::kProbe) {
    RETURN_IF_ERROR(Choose(route, std::min(options_.probe_timeout, Left(until))));
    return Find(route, method, until, /*probe=*/true);
  }
  ++fast_failures_;
  const milliseconds next = breaker_.Remaining(steady_clock::now());
  return MakeError(
      absl::StatusCode::kUnavailable, kUnreachable,
      absl::StrCat(Where(method), ": the address did not answer before; ",
                   next > milliseconds(0)
                       ? absl::StrFormat("it will be tried again in %.1f s", Seconds(next))
                       : "another call is trying it now"));
}

absl::Status RetryingClient::Find(Route& route, absl::string_view method, Time until, bool probe) {
  milliseconds patience = probe ? options_.probe_timeout : options_.connect_timeout;
  // A probe must say what came of it; else little patience proves little.
  const bool counts = probe || Left(until) >= std::min(patience, options_.probe_timeout);
  patience = std::max(milliseconds(1), std::min(patience, Left(until)));
  const absl::Status found = FindOne(route, patience);
  if (found.ok()) {
    Answered();
    return found;
  }
  if (counts) NobodyAnswered();
  return MakeError(absl::StatusCode::kUnavailable, kUnreachable,
                   absl::StrFormat("%s: nobody answers (tried for %.1f s): %s", Where(method),
                                   Seconds(patience), found.message()));
}

absl::Status RetryingClient::FindOne(Route& route, milliseconds patience) {
  if (!channels_.one()) {
    ASSIGN_OR_RETURN(std::shared_ptr<ServerChannel> found,
                     FindOneOfSeveral(channels_, route.about_, patience, route.servers_));
    Take(route, std::move(found));
    return absl::OkStatus();
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  context.set_wait_for_ready(true);
  const grpc::Status status = route.at_->Ping(context);
  if (IsAnswer(status)) return absl::OkStatus();
  return absl::UnavailableError(status.error_message());
}

absl::Status RetryingClient::AwaitReturn(Route& route, absl::string_view method, Time until,
                                         const absl::Status& gone) {
  RETURN_IF_ERROR(CheckTime(method, until));
  ++retries_;
  if (channels_.one()) {
    Degraded("away", "went away; waiting for it to come back");
  } else {
    Degraded(absl::StrCat("away ", route.target()),
             absl::StrCat(route.target(), " went away during ", method, "; asking the next one"));
    route.at_->Leave(milliseconds(0));
  }
  const absl::Status found = Find(route, method, until, /*probe=*/false);
  if (found.ok() || !channels_.one()) return found;
  // gRPC says of a server that it waited for in vain that time was up, and not why.
  return After(found, gone.message());
}

void RetryingClient::Pause(int attempt, Time until) {
  absl::BitGen random;
  const int64_t most = std::min<int64_t>(2000, int64_t{100} << std::min(attempt, 5));
  const milliseconds pause(absl::Uniform(absl::IntervalClosed, random, most / 2, most));
  std::this_thread::sleep_for(std::min(Left(until), pause));
}

bool RetryingClient::Obey(Route& route, const absl::Status& error, absl::string_view method,
                          Time until) {
  const std::string reason = ReasonOf(error);
  if (reason != "OVERLOADED" && reason != "QUOTA_USED_UP" && reason != "DRAINING") return false;
  const auto asked = RetryAfter(error);
  if (!asked.has_value()) return false;
  route.obeyed_ = std::string(error.message());
  if (reason == "DRAINING" && Leave(route, *asked)) return true;
  absl::BitGen random;
  const milliseconds pause(absl::Uniform(absl::IntervalClosed, random, asked->count(),
                                         asked->count() + asked->count() / 2));
  if (steady_clock::now() + pause >= until) return false;
  ++waits_;
  Degraded(reason, absl::StrCat(method, " has to wait: ", error.message()));
  std::this_thread::sleep_for(pause);
  return true;
}

void RetryingClient::Degraded(absl::string_view cause, absl::string_view text) {
  {
    const std::lock_guard lock(logged_mutex_);
    if (!logged_.insert(std::string(cause)).second) return;
  }
  const std::string line = absl::StrCat("bucketd: ", channels_.address(), ": ", text);
  if (options_.log) {
    options_.log(line);
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

void RetryingClient::CountUpload(bool resumed) {
  ++uploads_;
  if (resumed) ++resumed_uploads_;
}

ClientCounters RetryingClient::counters() const {
  return {.retries = retries_,
          .moves = moves_,
          .waits = waits_,
          .breaker_opens = breaker_opens_,
          .fast_failures = fast_failures_,
          .uploads = uploads_,
          .resumed_uploads = resumed_uploads_};
}

}  // namespace bucketd::client
