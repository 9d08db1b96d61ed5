#include "client/server_channel.h"

#include <algorithm>
#include <thread>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/errors.h"

#include "passes/base/status_macros.h"
#include "proto/planner.grpc.pb.h"

namespace bucketd::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kAside{1000}, kMostAside{20'000};  // and up to half as much again
constexpr milliseconds kRoundPause{100};  // where nobody answered, until all are asked again
constexpr milliseconds kRoundNamesHold{1000};
constexpr milliseconds kMostNamePause{1000};      // between looks for a name that nobody knows
constexpr milliseconds kNewerNamePatience{1000};  // where it is known what it stood for

ChannelOptions Named(ChannelOptions options, const ServerAddress& server) {
  options.server_name = server.name;
  return options;
}

bool IsOne(const absl::StatusOr<std::vector<std::string>>& entries) {
  return entries.ok() && entries->size() == 1 && !IsName(entries->front());
}

}  // namespace

milliseconds Left(steady_clock::time_point end) {
  return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(end - steady_clock::now()));
}

ServerChannel::ServerChannel(const ServerAddress& server, const ChannelOptions& options)
    : target_(server.target), channel_(MakeChannel(server.target, Named(options, server))) {}

grpc::Status ServerChannel::Ping(grpc::ClientContext& context) {
  v1::GetCapabilitiesResponse answer;
  return v1::Planner::NewStub(channel_)->GetCapabilities(&context, {}, &answer);
}

void ServerChannel::Answered() {
  met_ = true;
  const std::lock_guard lock(mutex_);
  aside_until_ = {};
  times_aside_ = 0;
}

void ServerChannel::Leave(milliseconds least) {
  met_ = false;
  const std::lock_guard lock(mutex_);
  const steady_clock::time_point now = steady_clock::now();
  // All calls that were under way when it went leave it: that is once.
  const bool left = aside_until_ > now;
  if (left && aside_until_ >= now + least) return;
  const milliseconds pause = std::max(least, std::min(kMostAside, kAside * (1 << times_aside_)));
  if (!left) times_aside_ = std::min(times_aside_ + 1, 10);
  absl::BitGen random;
  aside_until_ = now + milliseconds(absl::Uniform(absl::IntervalClosed, random, pause.count(),
                                                  pause.count() * 3 / 2));
}

milliseconds ServerChannel::Aside() const {
  const std::lock_guard lock(mutex_);
  return Left(aside_until_);
}

std::shared_ptr<const v1::GetCapabilitiesResponse> ServerChannel::capabilities() const {
  const std::lock_guard lock(mutex_);
  return capabilities_;
}

void ServerChannel::Remember(const v1::GetCapabilitiesResponse& capabilities) {
  const std::lock_guard lock(mutex_);
  capabilities_ = std::make_shared<v1::GetCapabilitiesResponse>(capabilities);
}

ServerChannels::ServerChannels(std::string address, const ChannelOptions& options,
                               LookUpName look_up)
    : address_(std::move(address)),
      entries_(ParseAddresses(address_)),
      one_(IsOne(entries_)),
      look_up_(std::move(look_up)),
      options_(options) {
  if (!one_) options_.retried = options_.not_retried = {};
}

bool ServerChannels::names_known() {
  if (!entries_.ok()) return true;
  const auto newest = steady_clock::now() - kNamesHold;
  const std::lock_guard lock(mutex_);
  return std::all_of(entries_->begin(), entries_->end(), [&](const std::string& entry) {
    return !IsName(entry) || names_[entry].when > newest;
  });
}

absl::StatusOr<ServerList> ServerChannels::InOrder(absl::string_view about, milliseconds patience,
                                                   milliseconds names_hold) {
  RETURN_IF_ERROR(entries_.status());
  const auto end = steady_clock::now() + patience;
  std::vector<ServerAddress> servers;
  for (const std::string& entry : *entries_) {
    if (!IsName(entry)) {
      servers.push_back({entry});
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<ServerAddress> found,
                     LookUpAgain(entry, Left(end), names_hold));
    servers.insert(servers.end(), found.begin(), found.end());
  }
  ServerList list;
  std::map<std::string, std::shared_ptr<ServerChannel>> listed;  // others die without the lock
  const std::lock_guard lock(mutex_);
  for (const ServerAddress& server : client::InOrder(std::move(servers), about)) {
    std::shared_ptr<ServerChannel>& channel = listed[server.target];
    if (channel == nullptr) channel = channels_[server.target];
    if (channel == nullptr) channel = NewChannel(server);
    list.push_back(channel);
  }
  channels_.swap(listed);
  return list;
}

std::shared_ptr<ServerChannel> ServerChannels::NewChannel(const ServerAddress& server) {
  // What watches the files is a thread.
  if (options_.credentials == nullptr && !absl::StartsWith(server.target, "unix:")) {
    options_.credentials = MakeCredentials(options_.tls);
  }
  return std::make_shared<ServerChannel>(server, options_);
}

absl::StatusOr<std::vector<ServerAddress>> ServerChannels::LookUpAgain(const std::string& name,
                                                                       milliseconds patience,
                                                                       milliseconds hold) {
  Known known;
  {
    const std::lock_guard lock(mutex_);
    known = names_[name];
  }
  if (!known.servers.empty() && steady_clock::now() - known.when < hold) return known.servers;
  const bool any = !known.servers.empty();
  const auto end = steady_clock::now() + (any ? std::min(patience, kNewerNamePatience) : patience);
  absl::StatusOr<std::vector<ServerAddress>> found = look_up_(name, Left(end));
  // A name may stand for nothing until its first server is there.
  for (milliseconds pause = kRoundPause; !found.ok() && !any && Left(end) > pause;
       pause = std::min(2 * pause, kMostNamePause)) {
    std::this_thread::sleep_for(pause);
    found = look_up_(name, Left(end));
  }
  if (!found.ok() && !any) return found.status();
  if (!found.ok()) found = known.servers;
  const std::lock_guard lock(mutex_);
  names_[name] = {steady_clock::now(), *found};
  return found;
}

ServerList Preferred(ServerList servers) {
  std::vector<std::pair<milliseconds, std::shared_ptr<ServerChannel>>> by_time;
  for (std::shared_ptr<ServerChannel>& server : servers) {
    const milliseconds aside = server->Aside();
    by_time.emplace_back(aside, std::move(server));
  }
  std::stable_sort(by_time.begin(), by_time.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < servers.size(); ++i) servers[i] = std::move(by_time[i].second);
  return servers;
}

absl::StatusOr<std::shared_ptr<ServerChannel>> FindOneOfSeveral(ServerChannels& channels,
                                                                absl::string_view about,
                                                                milliseconds patience,
                                                                ServerList& servers) {
  const auto end = steady_clock::now() + patience;
  for (;;) {
    std::vector<std::string> said;
    const milliseconds share = patience / static_cast<int64_t>(servers.size());
    for (const std::shared_ptr<ServerChannel>& server : Preferred(servers)) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() +
                           std::max(milliseconds(10), std::min(Left(end), share)));
      const grpc::Status status = server->Ping(context);
      if (IsStanding(status)) {
        server->Answered();
        return server;
      }
      const absl::Status why = FromRpc(status, server->target());
      server->Leave(RetryAfter(why).value_or(milliseconds(0)));
      said.emplace_back(why.message());
    }
    if (Left(end) <= kRoundPause) return absl::UnavailableError(absl::StrJoin(said, "; "));
    std::this_thread::sleep_for(kRoundPause);
    ASSIGN_OR_RETURN(servers, channels.InOrder(about, Left(end), kRoundNamesHold));
  }
}

}  // namespace bucketd::client
