#include "server/store/postgres/pg_connection.h"

#include <endian.h>
#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "passes/base/status_macros.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

constexpr Oid kBytea = 17, kInt8 = 20, kText = 25;
constexpr int kBinary = 1;
// SQLSTATEs.
constexpr char kNoNumber[] = "22P02";  // a text that should have been a number
constexpr char kWarning[] = "01000";   // none of its own: a commit's wait was cancelled
constexpr char kReadOnly[] = "25006";
constexpr std::chrono::seconds kInAHurry{1};
// An engine that is slow and not silent would else be asked for as long as there is what to ask.
constexpr std::chrono::seconds kHurryInAll{5};
constexpr std::chrono::milliseconds kLookUp{100};  // whether there is a hurry
constexpr char kWhichHosts[] = "target_session_attrs";

// libpq ends its messages with a line's end, and has some of several lines.
std::string OneLine(const char* text) {
  return absl::StrReplaceAll(absl::StripAsciiWhitespace(text),
                             {{"\n\t", "; "}, {"\n", "; "}, {"\t", " "}});
}

std::string OptionOf(const PgTarget& target, absl::string_view name) {
  for (const auto& [key, value] : target.options) {
    if (key == name) return value;
  }
  return "";
}

std::string PlaceOf(const PgTarget& target) {
  const auto option = [&](absl::string_view name) { return OptionOf(target, name); };
  const std::string user = option("user"), host = option("host"), port = option("port");
  return absl::StrCat("postgres://", user, user.empty() ? "" : "@",
                      host.empty() ? option("hostaddr") : host, port.empty() ? "" : ":", port, "/",
                      option("dbname"));
}

}  // namespace

absl::StatusOr<PgTarget> PgTarget::Parse(absl::string_view url) {
  const absl::Status no_url = absl::InvalidArgumentError(
      "expected postgres://user@host:port/database?option=value, with options of libpq and "
      "characters beyond letters and digits as %XX");
  if (!absl::StartsWith(url, "postgres://") && !absl::StartsWith(url, "postgresql://")) {
    return no_url;
  }
  // libpq's own message repeats the URL, with its password.
  const std::unique_ptr<PQconninfoOption, decltype(&PQconninfoFree)> parsed(
      PQconninfoParse(std::string(url).c_str(), nullptr), PQconninfoFree);
  if (parsed == nullptr) return no_url;
  PgTarget target;
  for (const PQconninfoOption* option = parsed.get(); option->keyword != nullptr; ++option) {
    if (option->val != nullptr) target.options.emplace_back(option->keyword, option->val);
    int seconds = 0;
    if (option->val == nullptr || absl::string_view(option->keyword) != "connect_timeout") continue;
    if (!absl::SimpleAtoi(option->val, &seconds) || seconds < 1 || seconds > 3600) {
      return absl::InvalidArgumentError("connect_timeout: expected 1 to 3600 seconds");
    }
    target.connect_timeout = std::chrono::seconds(seconds);
  }
  target.place = PlaceOf(target);
  return target;
}

void PgTarget::WantWrites() {
  if (!OptionOf(*this, kWhichHosts).empty() || getenv("PGTARGETSESSIONATTRS") != nullptr) return;
  options.emplace_back(kWhichHosts, "read-write");
}

PgStatement&& PgStatement::Bytes(std::optional<absl::string_view> value) && {
  Add(value.has_value() ? std::optional<std::string>(*value) : std::nullopt, kBytea);
  return std::move(*this);
}

PgStatement&& PgStatement::Text(const std::optional<std::string>& value) && {
  Add(value, kText);
  return std::move(*this);
}

PgStatement&& PgStatement::Int(std::optional<int64_t> value) && {
  std::optional<std::string> bytes;
  if (value.has_value()) {
    const uint64_t big_endian = htobe64(static_cast<uint64_t>(*value));
    bytes.emplace(reinterpret_cast<const char*>(&big_endian), sizeof(big_endian));
  }
  Add(std::move(bytes), kInt8);
  return std::move(*this);
}

void PgStatement::Add(std::optional<std::string> value, Oid type) {
  values_.push_back(std::move(value));
  types_.push_back(type);
}

absl::string_view PgResult::Bytes(int row, int column) const {
  return {PQgetvalue(result_.get(), row, column),
          static_cast<size_t>(PQgetlength(result_.get(), row, column))};
}

int64_t PgResult::Int(int row, int column) const {
  uint64_t big_endian = 0;
  const absl::string_view bytes = Bytes(row, column);
  std::memcpy(&big_endian, bytes.data(), std::min(bytes.size(), sizeof(big_endian)));
  return static_cast<int64_t>(be64toh(big_endian));
}

int64_t PgResult::affected() const {
  int64_t rows = 0;
  return absl::SimpleAtoi(PQcmdTuples(result_.get()), &rows) ? rows : 0;
}

namespace {

// A target for each of several hosts. What libpq would not take stays as it is, for libpq to say
// so; and who prefers a standby goes through all hosts twice.
std::vector<PgTarget> HostsOf(const PgTarget& target) {
  constexpr std::array kLists = {"host", "hostaddr", "port"};
  size_t hosts = 1;
  std::map<std::string, std::vector<std::string>> lists;
  for (const char* name : kLists) {
    const std::string list = OptionOf(target, name);
    if (list.empty()) continue;
    lists[name] = absl::StrSplit(list, ',');
    if (absl::string_view(name) != "port") hosts = std::max(hosts, lists[name].size());
  }
  bool fits = OptionOf(target, kWhichHosts) != "prefer-standby";
  for (const auto& [name, list] : lists) {
    fits = fits && (list.size() == hosts || (name == "port" && list.size() == 1));
  }
  std::vector<PgTarget> each(fits ? hosts : 1, target);
  for (size_t which = 0; fits && which < hosts; ++which) {
    for (auto& [key, value] : each[which].options) {
      const auto list = lists.find(key);
      if (list != lists.end()) value = list->second[list->second.size() == 1 ? 0 : which];
    }
  }
  return each;
}

}  // namespace

// libpq goes from one to the next by itself, but never leaves one that says nothing.
absl::StatusOr<std::unique_ptr<PgConnection>> PgConnection::Connect(const PgTarget& target,
                                                                    PgDeadline deadline,
                                                                    const Hurried* hurried) {
  const std::vector<PgTarget> hosts = HostsOf(target);
  absl::Status failed;
  for (size_t tried = 0; tried < hosts.size(); ++tried) {
    const auto now = std::chrono::steady_clock::now();
    const auto left = static_cast<int64_t>(hosts.size() - tried);
    absl::StatusOr<std::unique_ptr<PgConnection>> made =
        ConnectTo(hosts[tried], now + (deadline - now) / left, hurried);
    if (made.ok()) return made;
    failed =
        failed.ok()
            ? made.status()
            : absl::UnavailableError(absl::StrCat(failed.message(), "; ", made.status().message()));
  }
  return failed;
}

absl::StatusOr<std::unique_ptr<PgConnection>> PgConnection::ConnectTo(const PgTarget& target,
                                                                      PgDeadline deadline,
                                                                      const Hurried* hurried) {
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : target.options) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  keys.insert(keys.end(), {"fallback_application_name", "client_encoding", nullptr});
  values.insert(values.end(), {"bucketd", "UTF8", nullptr});
  std::unique_ptr<PgConnection> made(
      new PgConnection(PQconnectStartParams(keys.data(), values.data(), 0), hurried));
  RETURN_IF_ERROR(made->Finish(target, deadline));
  return made;
}

absl::Status PgConnection::Finish(const PgTarget& target, PgDeadline deadline) {
  PGconn* connection = connection_.get();
  if (connection == nullptr) return absl::UnavailableError("no memory for a connection");
  PQsetNoticeReceiver(connection, Notice, this);
  deadline = std::min(deadline, std::chrono::steady_clock::now() + target.connect_timeout);
  PostgresPollingStatusType state = PGRES_POLLING_WRITING;
  while (PQstatus(connection) != CONNECTION_BAD && state != PGRES_POLLING_OK &&
         state != PGRES_POLLING_FAILED) {
    const absl::Status waited = Await(state == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline);
    if (!waited.ok()) {
      return absl::UnavailableError(absl::StrCat(target.place, ": cannot connect: no answer in ",
                                                 target.connect_timeout.count(), " ms"));
    }
    state = PQconnectPoll(connection);
  }
  if (PQstatus(connection) == CONNECTION_OK) {
    PQsetnonblocking(connection, 1);
    if (PQenterPipelineMode(connection) == 1) return absl::OkStatus();
  }
  const std::string why = OneLine(PQerrorMessage(connection));
  return absl::UnavailableError(absl::StrCat(target.place, ": cannot connect: ", why));
}

PgDeadline PgConnection::Latest() const {
  const PgDeadline since = hurried_ == nullptr ? PgDeadline::max() : hurried_->load();
  if (since == PgDeadline::max()) return since;
  return std::min(std::max(since, began_) + kInAHurry, since + kHurryInAll);
}

absl::Status PgConnection::Await(short events, PgDeadline deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::min(deadline, Latest()) - std::chrono::steady_clock::now());
    if (left.count() <= 0) return absl::DeadlineExceededError("the engine did not answer in time");
    pollfd waiting{PQsocket(connection_.get()), events, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min(left, kLookUp).count()));
    if (ready > 0) return absl::OkStatus();
  }
}

// libpq's own receiver writes to stderr.
void PgConnection::Notice(void* self, const PGresult* notice) {
  const char* state = PQresultErrorField(notice, PG_DIAG_SQLSTATE);
  const char* severity = PQresultErrorField(notice, PG_DIAG_SEVERITY_NONLOCALIZED);
  if (state == nullptr || severity == nullptr) return;
  if (absl::string_view(state) == kWarning && absl::string_view(severity) == "WARNING") {
    static_cast<PgConnection*>(self)->unconfirmed_ = true;
  }
}

void PgConnection::CancelIfBeside(const PgConnection& other) {
  const PGconn *mine = connection_.get(), *its = other.connection_.get();
  const auto same = [&](char* (*what)(const PGconn*)) {
    return absl::NullSafeStringView(what(mine)) == absl::NullSafeStringView(what(its));
  };
  if (!same(PQhost) || !same(PQhostaddr) || !same(PQport)) return;
  const std::unique_ptr<PGcancel, decltype(&PQfreeCancel)> cancel(PQgetCancel(connection_.get()),
                                                                  PQfreeCancel);
  std::array<char, 256> why{};
  if (cancel != nullptr) PQcancel(cancel.get(), why.data(), static_cast<int>(why.size()));
}

absl::Status PgConnection::Break(absl::Status why) {
  broken_ = true;
  return why;
}

absl::Status PgConnection::Send(absl::Span<const PgStatement> statements, PgDeadline deadline) {
  PGconn* connection = connection_.get();
  for (const PgStatement& s : statements) {
    std::vector<const char*> values;
    std::vector<int> lengths;
    for (const std::optional<std::string>& value : s.values_) {
      values.push_back(value.has_value() ? value->data() : nullptr);
      lengths.push_back(value.has_value() ? static_cast<int>(value->size()) : 0);
    }
    const std::vector<int> formats(values.size(), kBinary);
    // Without a name: poolers hand each transaction to another server.
    if (PQsendQueryParams(connection, s.sql_.c_str(), static_cast<int>(values.size()),
                          s.types_.data(), values.data(), lengths.data(), formats.data(),
                          kBinary) != 1) {
      return absl::UnavailableError(OneLine(PQerrorMessage(connection)));
    }
  }
  CrashPoint("store: half sent");
  if (PQpipelineSync(connection) != 1) {
    return absl::UnavailableError(OneLine(PQerrorMessage(connection)));
  }
  while (true) {
    const int flushed = PQflush(connection);
    if (flushed == 0) return absl::OkStatus();
    if (flushed < 0) return absl::UnavailableError(OneLine(PQerrorMessage(connection)));
    // The engine may have to get rid of an answer before it reads on.
    RETURN_IF_ERROR(Await(POLLOUT | POLLIN, deadline));
    if (PQconsumeInput(connection) != 1) {
      return absl::UnavailableError(OneLine(PQerrorMessage(connection)));
    }
  }
}

absl::StatusOr<PGresult*> PgConnection::Next(PgDeadline deadline) {
  PGconn* connection = connection_.get();
  while (PQisBusy(connection) != 0) {
    RETURN_IF_ERROR(Await(POLLIN, deadline));
    if (PQconsumeInput(connection) != 1) {
      return absl::UnavailableError(OneLine(PQerrorMessage(connection)));
    }
  }
  return PQgetResult(connection);
}

// Nothing else here makes numbers of text; an assertion of SQL's own there is not.
std::string ExpectRowsSql(absl::string_view from, int64_t rows) {
  return absl::StrCat("SELECT CAST(CASE WHEN COUNT(*) = ", rows,
                      " THEN '1' ELSE 'bucketd: another server was first, which is no fault' END "
                      "AS BIGINT) FROM (",
                      from, ") AS expected");
}

absl::Status PgConnection::ErrorOf(const PGresult* result) {
  const char* state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
  const char* message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
  sqlstate_ = state == nullptr ? "" : state;
  const std::string why = OneLine(message != nullptr ? message : PQresultErrorMessage(result));
  if (sqlstate_ == "53100") return absl::ResourceExhaustedError(why);
  if (sqlstate_ == kNoNumber) return absl::AbortedError("not what was expected");
  if (sqlstate_ == kReadOnly) broken_ = true;  // it stays so; another host may take writes
  return absl::UnavailableError(
      absl::StrCat(why, state == nullptr ? "" : " (", sqlstate_, state == nullptr ? "" : ")"));
}

absl::StatusOr<std::vector<PgResult>> PgConnection::Run(absl::Span<const PgStatement> statements,
                                                        PgDeadline deadline) {
  sqlstate_.clear();
  unconfirmed_ = false;
  began_ = std::chrono::steady_clock::now();
  const absl::Status sent = Send(statements, deadline);
  if (!sent.ok()) return Break(sent);
  CrashPoint("store: sent");
  std::vector<PgResult> results;
  absl::Status failed;
  while (true) {
    const absl::StatusOr<PGresult*> next = Next(deadline);
    if (!next.ok()) return Break(next.status());
    if (PQstatus(connection_.get()) == CONNECTION_BAD) broken_ = true;
    if (*next == nullptr) {  // the end of one statement's results
      if (broken_) return failed.ok() ? absl::UnavailableError("the connection was lost") : failed;
      continue;
    }
    PgResult result(*next);
    const ExecStatusType status = PQresultStatus(*next);
    if (status == PGRES_PIPELINE_SYNC) break;
    if (status == PGRES_FATAL_ERROR && failed.ok()) failed = ErrorOf(*next);
    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) {
      results.push_back(std::move(result));
    }
  }
  RETURN_IF_ERROR(failed);
  if (unconfirmed_) {
    return absl::UnavailableError(
        "the wait for the synchronous standby was cancelled: whether that is kept is unknown");
  }
  if (results.size() == statements.size()) return results;
  return Break(absl::UnavailableError("the engine's answer is incomplete"));
}

}  // namespace bucketd
