// What PostgreSQL alone can do to a store: refuse, be somebody else's, break, stand still.
#include "server/store/postgres/postgres_store.h"

#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/server/postgres_cluster.h"
#include "tests/server/store_fixture.h"

namespace bucketd::store_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PostgresStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    database_ = cluster_.NewDatabase();
    options_.url = cluster_.Url(database_);
    options_.observer = &counts_;
  }
  void Open() {
    store_.reset();
    auto made = PostgresStore::Open(options_);
    ASSERT_TRUE(made.ok()) << made.status();
    store_ = *std::move(made);
  }
  void OpenWithAPlan() {
    Open();
    ASSERT_TRUE(store_->PutPlan(KeyOf(1), "team", "kept").ok());
  }
  static bool Eventually(const std::function<bool()>& condition) {
    for (int tries = 0; tries < 1500; ++tries) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(20));
    }
    return false;
  }
  // The refusal, which names the place; nothing was made.
  std::string Refused(const std::string& url, absl::StatusCode code) {
    PostgresStoreOptions options = options_;
    options.url = url;
    const absl::Status status = PostgresStore::Open(options).status();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }
  std::string Ask(const std::string& query) { return cluster_.Ask(database_, query); }
  void Sql(const std::string& statements) { EXPECT_EQ(cluster_.Sql(database_, statements), ""); }
  std::string Get(const std::string& key) {
    const auto plan = store_->GetPlan(key);
    return plan.ok() ? plan->value_or("") : absl::StatusCodeToString(plan.status().code());
  }

  PostgresCluster& cluster_ = PostgresCluster::Get();
  std::string database_;
  Counts counts_;
  PostgresStoreOptions options_;
  std::unique_ptr<PostgresStore> store_;
};

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

TEST_F(PostgresStoreTest, AUrlThatIsNoneIsRefusedWithoutRepeatingIt) {
  for (const std::string url :
       {"mysql://u:secret@h/d", "postgres://u:secret@[::1]x/d", "postgres://u:sec%zzret@h/d",
        "postgres://u:secret@h/d?nonsense=1", "", "postgres://u:secret@[::1/d"}) {
    const std::string why = Refused(url, absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(why, HasSubstr("postgres://user@host:port/database")) << url;
    EXPECT_THAT(why, Not(HasSubstr("secret"))) << url;
  }
  const std::string late =
      Refused(options_.url + "&connect_timeout=0", absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(late, HasSubstr("connect_timeout"));
}

TEST_F(PostgresStoreTest, WhoSaysNoIsNamedWithWhatToDoAndThePasswordIsNot) {
  Sql("DROP ROLE IF EXISTS locked; CREATE ROLE locked LOGIN PASSWORD 'right'");
  std::string url = cluster_.Url(database_, "locked:wrongsecret");
  std::string why = Refused(url, kUnavailable);
  EXPECT_THAT(why, HasSubstr("password authentication failed"));
  EXPECT_THAT(why, HasSubstr("postgres://locked@"));
  EXPECT_THAT(why, Not(HasSubstr("wrongsecret")));
  why = Refused(cluster_.Url("nowhere"), kUnavailable);
  EXPECT_THAT(why, HasSubstr("database \"nowhere\" does not exist"));
  why = Refused(cluster_.Url(database_, "locked:right"), kUnavailable);
  EXPECT_THAT(why, HasSubstr("GRANT CREATE"));
  why = Refused("postgres://u@/d?host=%2Fnowhere", kUnavailable);
  EXPECT_THAT(why, HasSubstr("postgres://u@/nowhere/d: cannot connect"));
  Sql(absl::StrCat("ALTER DATABASE ", database_, " SET default_transaction_read_only = on"));
  EXPECT_THAT(Refused(options_.url, kPrecondition), HasSubstr("name the primary"));
}

TEST_F(PostgresStoreTest, OtherIsolationIsRefusedAndNothingMade) {
  const std::string role = absl::StrCat("ALTER ROLE bucketd IN DATABASE ", database_);
  Sql(role + " SET default_transaction_isolation = 'repeatable read'");
  const std::string cure = role + " SET default_transaction_isolation = 'read committed'";
  EXPECT_THAT(Refused(options_.url, kPrecondition),
              AllOf(HasSubstr("transactions are 'repeatable read' here"), HasSubstr(cure)));
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM pg_tables WHERE tablename ~ 'bucketd'"), "0");
  Sql(cure);
  Open();
}

TEST_F(PostgresStoreTest, TablesOfSomebodyElseAreRefusedAndLeftAlone) {
  Sql("CREATE TABLE bucketd_plan(mine TEXT); INSERT INTO bucketd_plan VALUES('x')");
  EXPECT_THAT(Refused(options_.url, kPrecondition), HasSubstr("name another database"));
  EXPECT_EQ(Ask("SELECT mine FROM bucketd_plan"), "x");
  EXPECT_EQ(cluster_.Ask(database_,
                         "SELECT COUNT(*) FROM pg_tables WHERE tablename LIKE "
                         "'bucketd%'"),
            "1");
  Sql("DROP TABLE bucketd_plan; CREATE TABLE bucketd_schema(version BIGINT)");
  EXPECT_THAT(Refused(options_.url, kPrecondition), HasSubstr("name another database"));
}

TEST_F(PostgresStoreTest, AServerRunsOnItsSchemaAndTheNextAndRefusesOthersUntouched) {
  OpenWithAPlan();
  Sql("UPDATE bucketd_schema SET version = 3, min_reader = 1");
  Open();
  EXPECT_EQ(Get(KeyOf(1)), "kept") << "what is new was added; what is old is still there";
  store_.reset();
  for (const std::string version : {"version = 3, min_reader = 3", "version = 4, min_reader = 1",
                                    "version = 0, min_reader = 0"}) {
    Sql("UPDATE bucketd_schema SET " + version);
    const std::string before = Ask("SELECT bucketd_schema FROM bucketd_schema");
    const std::string why = Refused(options_.url, kPrecondition);
    EXPECT_THAT(why, HasSubstr("this one knows schema 2, and takes 1 to 3 where")) << version;
    EXPECT_THAT(why, HasSubstr("start a bucketd of the version that wrote it")) << version;
    EXPECT_EQ(Ask("SELECT bucketd_schema FROM bucketd_schema"), before);
  }
  Sql("DELETE FROM bucketd_schema");
  EXPECT_THAT(Refused(options_.url, kPrecondition), HasSubstr("restore it from a backup"));
}

TEST_F(PostgresStoreTest, AServerThatRunsStopsAtAVersionThatIsNotForIt) {
  OpenWithAPlan();
  const auto look = [&](const std::string& change, bool ours) {
    Sql(change);
    EXPECT_EQ(store_->Version().ok(), ours) << change;  // what servers do once a second
    EXPECT_EQ(Get(KeyOf(1)), ours ? "kept" : "UNAVAILABLE") << change;
    EXPECT_EQ(store_->PutPlan(KeyOf(2), "team", "2").code(),
              ours ? absl::StatusCode::kOk : kUnavailable)
        << change;
  };
  look("UPDATE bucketd_schema SET version = 3", true);
  look("UPDATE bucketd_schema SET min_reader = 3", false);
  EXPECT_THAT(counts_.problems, HasSubstr("cannot write: "));
  EXPECT_THAT(counts_.problems, HasSubstr("for servers that know schema 3"));
  look("UPDATE bucketd_schema SET version = 2, min_reader = 1", true);
  look("DELETE FROM bucketd_schema", false);
  EXPECT_THAT(counts_.problems, HasSubstr("bucketd_schema has no row"));
}

TEST_F(PostgresStoreTest, WhatTheVersionBeforeDidNotHaveIsAddedAndItsServersStillRun) {
  OpenWithAPlan();
  store_.reset();
  Sql("DROP TABLE bucketd_audit; UPDATE bucketd_schema SET version = 1, min_reader = 1");
  options_.read_only = true;
  Open();
  EXPECT_EQ(Get(KeyOf(1)), "kept");
  EXPECT_TRUE(store_->ListAudit({}, 10)->empty()) << "nothing is added by who only looks";
  EXPECT_EQ(Ask("SELECT version FROM bucketd_schema"), "1");
  options_.read_only = false;
  Open();
  EXPECT_EQ(Get(KeyOf(1)), "kept");
  const AuditLine line{{"ops", "", "*"}, "team", "pin", "job", "", "plan"};
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "key", "value", &line).ok());
  EXPECT_EQ(store_->ListAudit({}, 10)->size(), 1U);
  EXPECT_EQ(Ask("SELECT version * 10 + min_reader FROM bucketd_schema"), "21")
      << "a server of schema 1 works with versions 1 and 2 whose earliest reader is 1";
}

TEST_F(PostgresStoreTest, ManyServersThatStartAtOnceMakeOneStore) {
  options_.observer = &StoreObserver::Nobody();
  std::vector<std::thread> threads;
  std::vector<absl::Status> made(6);
  for (absl::Status& status : made) {
    threads.emplace_back([&] { status = PostgresStore::Open(options_).status(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : made) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(PostgresStoreTest, ADamagedValueIsToldOnceAndNeverGivenOut) {
  Open();
  ASSERT_TRUE(store_->PutPlan(KeyOf(1), "team", Bytes(600'000, 'a')).ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "pin", "a").ok());
  ASSERT_TRUE(store_->PutRecord(Shelf::kSettings, "off", "a").ok());
  Sql("DELETE FROM bucketd_plan_chunk WHERE part = 1; UPDATE bucketd_record SET value = 'b'");
  EXPECT_EQ(Get(KeyOf(1)), "DATA_LOSS");
  EXPECT_EQ(Get(KeyOf(1)), "");
  EXPECT_EQ(store_->GetRecord(Shelf::kPins, "pin").status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(store_->GetRecord(Shelf::kPins, "pin")->has_value());
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_EQ(store_->GetRecord(Shelf::kSettings, "off").status().code(),
              absl::StatusCode::kDataLoss)
        << "what a setting said must not become \"on\"";
  }
  EXPECT_TRUE(store_->ReplaceRecord(Shelf::kSettings, "off", std::nullopt, "new").ok())
      << "a damaged one counts as none";
  EXPECT_EQ(store_->GetRecord(Shelf::kSettings, "off")->value_or(""), "new");
  EXPECT_EQ(counts_.damages, 4);
}

TEST_F(PostgresStoreTest, ConnectionsThatBreakAreMadeAnewAndNothingIsLost) {
  OpenWithAPlan();
  cluster_.Stop();
  EXPECT_EQ(Get(KeyOf(1)), "UNAVAILABLE") << "not \"there is none\"";
  EXPECT_EQ(store_->PutPlan(KeyOf(2), "team", "2").code(), kUnavailable);
  EXPECT_EQ(counts_.reads[StoreRead::kError], 1);
  EXPECT_EQ(counts_.writes[StoreWrite::kError], 1);
  EXPECT_THAT(counts_.problems, HasSubstr(store_->place()));
  cluster_.Start();
  EXPECT_TRUE(Eventually([&] { return Get(KeyOf(1)) == "kept"; }));
  cluster_.Stop();
  cluster_.Start();
  EXPECT_EQ(Get(KeyOf(1)), "kept") << "the first call after a restart finds the new one";
}

TEST_F(PostgresStoreTest, AnEngineThatStandsStillCostsACallItsDeadlineAlone) {
  options_.call_timeout = milliseconds(400);
  Open();
  cluster_.Freeze(true);
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status written = store_->PutRecord(Shelf::kPins, "k", "v");
  const auto took = std::chrono::steady_clock::now() - begin;
  cluster_.Freeze(false);
  EXPECT_EQ(written.code(), kUnavailable) << written;
  EXPECT_THAT(std::string(written.message()), HasSubstr("did not answer in time"));
  EXPECT_LT(took, std::chrono::seconds(5));
}

TEST_F(PostgresStoreTest, ACommitWhoseOutcomeIsUnknownIsAskedAgain) {
  Open();
  ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "k", "1").ok());
  // Whoever writes first is thrown out in the middle of it; its second attempt must go through.
  Sql("CREATE FUNCTION strike() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
      "IF nextval('strikes') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; "
      "RETURN NEW; END $$; CREATE SEQUENCE strikes;"
      "CREATE TRIGGER t BEFORE UPDATE ON bucketd_record FOR EACH ROW EXECUTE FUNCTION strike()");
  const absl::Status replaced = store_->ReplaceRecord(Shelf::kPins, "k", "1", "2");
  EXPECT_TRUE(replaced.ok()) << replaced;
  EXPECT_EQ(store_->GetRecord(Shelf::kPins, "k")->value_or(""), "2");
  EXPECT_EQ(counts_.writes[StoreWrite::kError], 0);
}

// An engine that takes connections and does not answer.
class SilenceTest : public PostgresStoreTest {
 protected:
  void SetUp() override {
    PostgresStoreTest::SetUp();
    OpenWithAPlan();
    ASSERT_TRUE(store_->PutRecord(Shelf::kPins, "k", "0").ok());
    options_.call_timeout = milliseconds(700);
    Open();
  }
  void TearDown() override { WaitForStandby(false); }
  // The engine reads its configuration when it likes.
  void WaitForStandby(bool waits) {
    const std::string name = waits ? "nobody" : "";
    Sql("ALTER SYSTEM SET synchronous_standby_names = '" + name + "'");
    Ask("SELECT pg_reload_conf()");
    Eventually([&] { return Ask("SHOW synchronous_standby_names") == name; });
  }
  std::thread During(const std::string& statements) {
    std::thread other([this, statements] {
      cluster_.Sql(database_, "BEGIN; " + statements + "; SELECT pg_sleep(3); COMMIT");
    });
    Eventually([&] { return Ask(kSleeping) == "1"; });
    return other;
  }
  static milliseconds Took(const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  }
  absl::Status Put() { return store_->PutRecord(Shelf::kPins, "new", "value"); }
  // How long until it is written.
  milliseconds UntilWritten() {
    return Took([&] { Eventually([&] { return Put().ok(); }); });
  }

  static constexpr char kSleeping[] =
      "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
  static constexpr char kWaiting[] =
      "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
};

TEST_F(SilenceTest, WhileNoCommitEndsWritesFailAtOnceAndReadsGoOn) {
  WaitForStandby(true);
  while (Put().ok()) continue;
  const milliseconds took = Took([&] {
    for (int call = 0; call < 20; ++call) {
      EXPECT_EQ(Put().code(), kUnavailable);
      EXPECT_EQ(Get(KeyOf(1)), "kept");
    }
  });
  EXPECT_LT(took, milliseconds(650)) << "a call that waits takes 700";
  std::this_thread::sleep_for(std::chrono::seconds(4));
  absl::Status put;
  EXPECT_LT(Took([&] { put = Put(); }), milliseconds(650)) << "no more when the pool has asked";
  EXPECT_THAT(put.message(), HasSubstr("did not answer in time"));
  EXPECT_LE(std::stoi(Ask(kWaiting)), 3)
      << "the pool leaves no session behind for each time it asked";
  WaitForStandby(false);
  EXPECT_LT(UntilWritten(), std::chrono::seconds(4));
  EXPECT_EQ(Ask("SELECT COUNT(*) FROM bucketd_record WHERE shelf = 0"), "0");
}

TEST_F(SilenceTest, WhatWritesAgainIsToldThoughNobodyWrites) {
  WaitForStandby(true);
  while (Put().ok()) continue;
  const int written = counts_.writes[StoreWrite::kOk];
  WaitForStandby(false);
  std::this_thread::sleep_for(std::chrono::seconds(4));
  store_.reset();  // and its threads
  EXPECT_EQ(counts_.writes[StoreWrite::kOk], written + 1);
}

TEST_F(SilenceTest, WhileATableIsLockedOneCallWaitsAndTheOthersFailAtOnce) {
  std::thread other = During("LOCK TABLE bucketd_plan IN ACCESS EXCLUSIVE MODE");
  EXPECT_EQ(Get(KeyOf(1)), "UNAVAILABLE");
  const milliseconds took = Took([&] {
    for (int call = 0; call < 20; ++call) {
      EXPECT_EQ(Get(KeyOf(1)), "UNAVAILABLE");
      EXPECT_EQ(store_->PutPlan(KeyOf(2), "team", "2").code(), kUnavailable);
    }
  });
  EXPECT_LT(took, milliseconds(650));
  other.join();
  EXPECT_LT(UntilWritten(), std::chrono::seconds(3));
  EXPECT_EQ(Get(KeyOf(1)), "kept");
}

TEST_F(SilenceTest, WhoOnlyLooksWritesNothingToFindOutEither) {
  Sql("CREATE SEQUENCE inserts; CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ "
      "BEGIN "
      "PERFORM nextval('inserts'); RETURN NEW; END $$; CREATE TRIGGER t BEFORE INSERT ON "
      "bucketd_record FOR EACH ROW EXECUTE FUNCTION note()");
  options_.read_only = true;
  Open();
  std::thread other = During("LOCK TABLE bucketd_plan IN ACCESS EXCLUSIVE MODE");
  EXPECT_EQ(Get(KeyOf(1)), "UNAVAILABLE");
  other.join();
  std::this_thread::sleep_for(std::chrono::seconds(3));
  EXPECT_EQ(Get(KeyOf(1)), "kept");
  EXPECT_EQ(Ask("SELECT is_called FROM inserts"), "f");
}

TEST_F(SilenceTest, ALoneCallThatWaitsKeepsNobodyElseFromWriting) {
  std::thread other = During("UPDATE bucketd_record SET write_id = 1 WHERE key = 'k'");
  EXPECT_EQ(store_->PutRecord(Shelf::kPins, "k", "1").code(), kUnavailable);
  EXPECT_LT(UntilWritten(), milliseconds(1500));
  EXPECT_EQ(Ask(kSleeping), "1") << "it was over by then";
  other.join();
}

TEST_F(SilenceTest, WhoWaitsWhenTheProcessEndsWaitsForASecond) {
  options_.call_timeout = std::chrono::seconds(60);
  Open();
  WaitForStandby(true);
  absl::Status written;
  std::thread writer([&] {
    while (written.ok()) written = Put();
  });
  while (Ask(kWaiting) == "0") continue;
  const milliseconds took = Took([&] {
    store_->Hurry();
    writer.join();
    EXPECT_EQ(store_->PutPlan(KeyOf(2), "team", "2").code(), kUnavailable);
    store_.reset();
  });
  EXPECT_EQ(written.code(), kUnavailable) << written;
  EXPECT_LT(took, std::chrono::seconds(4));
}

TEST_F(SilenceTest, WhoIsInAHurryStillWritesWhereTheEngineAnswers) {
  store_->Hurry();
  std::this_thread::sleep_for(milliseconds(1200));
  EXPECT_TRUE(Put().ok()) << "a second each, not one for all";
}

// Each of them would be waited for.
TEST_F(SilenceTest, WhatIsAskedOfASlowEngineInAHurryEndsAllTheSame) {
  const auto target = PgTarget::Parse(options_.url);
  ASSERT_TRUE(target.ok());
  PgConnection::Hurried hurried{std::chrono::steady_clock::now()};
  const PgStatement slow[] = {PgStatement("SELECT pg_sleep(0.7)")};
  int answered = 0;
  const milliseconds took = Took([&] {
    const PgDeadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    const auto connection = PgConnection::Connect(*target, deadline, &hurried);
    ASSERT_TRUE(connection.ok()) << connection.status();
    while (answered < 20 && (*connection)->Run(slow, deadline).ok()) ++answered;
  });
  EXPECT_GE(answered, 4);
  EXPECT_LT(took, std::chrono::seconds(6));
}

// What a standby does, and a failover: connections break, and who answers next takes no writes.
class FailoverTest : public PostgresStoreTest {
 protected:
  void TakesWrites(bool takes) {
    EXPECT_EQ(cluster_.Sql("postgres", absl::StrCat("ALTER DATABASE ", database_,
                                                    " SET default_transaction_read_only = ",
                                                    takes ? "off" : "on")),
              "");
  }
  void Restart() {
    cluster_.Stop();
    cluster_.Start();
  }
  bool EventuallyPut() {
    return Eventually([this] { return store_->PutPlan(KeyOf(2), "team", "2").ok(); });
  }
};

TEST_F(FailoverTest, WhoTakesNoWritesIsNotAskedForPlansEither) {
  OpenWithAPlan();
  TakesWrites(false);
  Restart();
  EXPECT_EQ(Get(KeyOf(1)), "UNAVAILABLE") << "a standby may lag behind";
  PostgresStoreOptions looking = options_;
  looking.read_only = true;
  EXPECT_TRUE(PostgresStore::Open(looking).ok()) << "a standby will do for who only looks";
  TakesWrites(true);
  EXPECT_TRUE(EventuallyPut()) << counts_.problems;
  EXPECT_EQ(Get(KeyOf(1)), "kept");
}

TEST_F(FailoverTest, AConnectionThatTakesNoWritesIsLeftForANewOne) {
  options_.url += "&target_session_attrs=any";
  Open();
  TakesWrites(false);
  Restart();
  const absl::Status refused = store_->PutPlan(KeyOf(2), "team", "2");
  EXPECT_EQ(refused.code(), kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("25006"));
  TakesWrites(true);
  EXPECT_TRUE(EventuallyPut()) << counts_.problems;
}

TEST_F(FailoverTest, AHostThatSaysNothingIsPassedOver) {
  const TempFolder temp;
  const std::string& folder = temp.path();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (folder + "/.s.PGSQL.5432").copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int silent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(bind(silent, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(silent, 9), 0);
  const std::string host = absl::StrReplaceAll(folder, {{"/", "%2F"}});
  options_.url =
      absl::StrReplaceAll(options_.url, {{"?host=", "?host=" + host + ","}}) + "&connect_timeout=1";
  Open();
  EXPECT_TRUE(store_->PutPlan(KeyOf(1), "team", "kept").ok());
  options_.url = absl::StrReplaceAll(options_.url, {{host + ",", host + "," + host + ","}});
  EXPECT_THAT(Refused(options_.url + "&hostaddr=127.0.0.1", kUnavailable),
              HasSubstr("could not match"));
  close(silent);
}

// An operator who ends the wait for a standby has the engine say that the commit is done.
TEST_F(SilenceTest, ACommitWhoseWaitForAStandbyWasCancelledIsMadeAgain) {
  options_.call_timeout = std::chrono::seconds(120);
  Open();
  WaitForStandby(true);
  std::atomic<bool> is_last = false;
  int writes = 0;
  absl::Status written;
  std::thread writer([&] {  // until one waits
    while (written.ok() && !is_last) {
      written =
          store_->ReplaceRecord(Shelf::kPins, "k", absl::StrCat(writes), absl::StrCat(writes + 1));
      ++writes;
    }
  });
  const auto waits = [&](const std::string& what) {
    std::string found;
    Eventually([&] {
      found = Ask("SELECT " + what + " FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
      return !found.empty() && !absl::StartsWith(found, "?");
    });
    return found;
  };
  EXPECT_NE(waits("pid"), "");
  is_last = true;
  for (const bool again : {false, true}) {
    EXPECT_EQ(waits("pg_cancel_backend(pid)"), "t")
        << (again ? "made again, it found all there and waited for nobody" : "");
  }
  EXPECT_NE(waits("pid"), "") << "and again";
  WaitForStandby(false);
  writer.join();
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(store_->GetRecord(Shelf::kPins, "k")->value_or(""), absl::StrCat(writes));
}

}  // namespace
}  // namespace bucketd::store_test
