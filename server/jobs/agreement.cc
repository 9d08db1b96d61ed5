#include "server/jobs/agreement.h"

#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "passes/base/status_macros.h"
#include "server/base/errors.h"
#include "server/base/log.h"
#include "server/jobs/machine/job_signature.h"
#include "server/store/crash_point.h"

namespace bucketd {
namespace {

using Clock = std::chrono::steady_clock;

// Wait for the store, compare graphs. What one share does takes long where it lets
// go of thousands of pins: then another thread is left.
constexpr int kWorkers = 3;
constexpr int kWorkersOfOneShare = 2;
constexpr int kMaxQueuedWork = 1 << 16;
// Whoever ends a scope hands this many answers out by itself; a verdict for more is a worker's job.
constexpr size_t kAnswersInline = 64;
constexpr size_t kMaxReleased = 500;  // jobs in a call, which has to end by its deadline

Digest SignatureId(absl::string_view signature, bool fresh) {
  Sha256Stream hash;
  hash.Append(signature);
  hash.Append(fresh ? "fresh" : "");
  return hash.Finish();
}

AgreementLimits LimitsOf(const ServerOptions& options) {
  return {.max_jobs = options.max_jobs,
          .max_waiting_ranks = options.max_waiting_ranks,
          .job_idle = options.job_idle,
          .upload_lease = options.upload_lease,
          .replan_gain_ppm = options.costs.replan_gain_ppm,
          .taken_over_after = options.cluster_address.empty() ? std::chrono::milliseconds(0)
                                                              : options.cluster_dead * 4 / 5};
}

void AddFitting(const std::string& pattern, std::vector<std::string> ids,
                std::set<std::string>& fitting) {
  for (std::string& id : ids) {
    if (fnmatch(pattern.c_str(), id.c_str(), 0) == 0) fitting.insert(std::move(id));
  }
}

}  // namespace

class Agreement::HereNow final : public Surroundings {
 public:
  explicit HereNow(const Parts& parts) : parts_(parts) {}
  GraphPtr Graph(const std::string& key) const override { return parts_.graphs.Get(key); }
  bool HasGraph(const std::string& key) const override { return parts_.graphs.Contains(key); }
  absl::StatusOr<ProfilePtr> Profile(const std::string& id) const override {
    return parts_.costs.Resolve(id, "");
  }
  std::optional<std::string> PlanningDisabled() const override {
    return parts_.planning.WhyDisabled();
  }

 private:
  const Parts& parts_;
};

Agreement::Agreement(const Parts& parts)
    : parts_(parts),
      around_(std::make_unique<HereNow>(parts_)),
      table_(LimitsOf(parts_.options), *around_),
      answers_(1, kMaxQueuedWork),
      workers_(kWorkers, kMaxQueuedWork, kWorkersOfOneShare) {
  SweepPins();
}

Agreement::~Agreement() { Stop(); }

void Agreement::Stop() {
  workers_.Stop();
  answers_.Stop();
}

// ---- events in

void Agreement::Happen(Event event) {
  Due due;
  {
    const absl::MutexLock lock(&mutex_);
    due = Take(std::move(event));
  }
  Run(std::move(due));
}

template <typename CallEvent>
Agreement::CallId Agreement::Come(CallEvent event, Done done) {
  Due due;
  bool waits = false;
  {
    const absl::MutexLock lock(&mutex_);
    event.call = table_.NewCall();
    callers_.emplace(event.call, Waiting{std::move(done), event.job.share});
    due = Take(event);
    waits = table_.Waits(event.call);
  }
  Run(std::move(due));
  return waits ? event.call : 0;
}

Agreement::CallId Agreement::GetPlan(const JobCall& job, std::shared_ptr<PlanRequest> request,
                                     SteadyTime deadline, Done done) {
  const CallIds ids = request->asker.call;
  const WorkFor names(ids);
  // Hashing is done before the lock is taken.
  std::string signature = SignatureOf(request->key, request->profile_as_asked);
  const Digest id = SignatureId(signature, job.fresh);
  return Come(RankCame{0, job, std::move(request), std::move(signature), id, deadline},
              std::move(done));
}

void Agreement::Refuse(const JobCall& job, const absl::Status& why, Done done) {
  Come(RankRefused{0, job, why}, std::move(done));
}

void Agreement::Cancel(CallId call) {
  if (call != 0) Happen(CallerLeft{call});
}

void Agreement::BeginDrain() { Happen(DrainBegan{}); }

void Agreement::ReleaseJobs(const Release& what,
                            std::function<void(absl::StatusOr<Released>)> done) {
  Submit(
      workers_, what.share, [this, what, done] { done(ReleaseNow(what)); },
      [done] { done(MakeError(Reason::kOverloaded, "too much is waiting for the store")); });
}

std::set<std::string> Agreement::Fitting(const std::string& tenant,
                                         const std::string& pattern) const {
  std::vector<std::string> ids;
  {
    const absl::MutexLock lock(&mutex_);
    ids = table_.IdsOf(tenant);
  }
  std::set<std::string> names;
  AddFitting(pattern, std::move(ids), names);
  return names;
}

absl::StatusOr<Agreement::Released> Agreement::ReleaseNow(const Release& what) {
  std::set<std::string> names = {what.job};
  if (what.pattern) {
    names = Fitting(what.tenant, what.job);
    parts_.pins.DropExpired();  // and knows what other servers have pinned
    AddFitting(what.job, parts_.pins.Jobs(what.tenant), names);
  }
  Released released;
  Actor by = what.by;
  by.in_passing = !what.by_operator;
  for (const std::string& name : names) {
    released.more = released.jobs.size() == kMaxReleased;
    if (released.more) break;
    ASSIGN_OR_RETURN(const int64_t pins, parts_.pins.Release(what.tenant, name, by));
    Happen(JobReleased{JobName(what.tenant, name), what.by_operator});
    released.jobs.insert(name);
    released.pins += pins;
  }
  return released;
}

std::set<std::string> Agreement::Forget(const v1::ForgetJobsRequest& what) {
  std::set<std::string> fitting;
  if (!what.pattern().empty()) fitting = Fitting(what.tenant(), what.pattern());
  std::set<std::string> names(what.job_id().begin(), what.job_id().end());
  names.insert(fitting.begin(), fitting.end());
  for (const std::string& name : names) {
    parts_.pins.ForgetJob(what.tenant(), name);
    Happen(JobReleased{JobName(what.tenant(), name), what.by_operator()});
  }
  return fitting;
}

void Agreement::SweepPins() {
  using std::chrono::milliseconds;
  const milliseconds period =
      std::clamp<milliseconds>(parts_.options.pin_ttl / 4, milliseconds(10), std::chrono::hours(1));
  parts_.timers.Schedule(Clock::now() + period, [this] {
    Submit(
        workers_, {}, [this] { parts_.pins.DropExpired(); }, [] {});
    SweepPins();
  });
}

std::vector<JobSnapshot> Agreement::Jobs(const JobName& after, size_t limit) const {
  const absl::MutexLock lock(&mutex_);
  return table_.Snapshots(Clock::now(), after, limit);
}

// ---- actions out

Agreement::Due Agreement::Take(Event event) {
  // What has come is not there to be cancelled any more.
  if (const auto* fired = std::get_if<TimerFired>(&event)) timers_.erase(fired->timer.number);
  if (const auto* came = std::get_if<PlanCame>(&event)) asked_.erase(came->fetch.number);
  Actions actions = table_.Handle(Clock::now(), std::move(event));
  for (const Count& count : actions.counts) Add(count);
  ShowSizes();
  Due due;
  due.answers.reserve(actions.answers.size());
  for (auto& [call, answer] : actions.answers) {
    Waiting caller = TakeCaller(call);
    due.answers.emplace_back(std::move(caller.done), std::move(answer));
    due.share = std::move(caller.share);
  }
  due.notes = std::move(actions.notes);
  for (Action& action : actions.rest) {
    // A lambda's body is checked by itself; the lock is held here.
    std::visit([&](auto& what) ABSL_NO_THREAD_SAFETY_ANALYSIS { Start(what, due); }, action);
  }
  return due;
}

void Agreement::Add(const Count& count) {
  AgreementMetrics& metrics = parts_.metrics;
  if (const auto* ended = std::get_if<ScopeEnded>(&count)) {
    metrics.agreements(ended->outcome).Increment();
    metrics.seconds.Observe(ended->seconds);
  } else if (const auto* replan = std::get_if<ReplanOutcome>(&count)) {
    metrics.replans(*replan).Increment();
  } else {
    metrics.tally(std::get<Tally>(count)).Increment();
  }
}

void Agreement::ShowSizes() {
  parts_.metrics.jobs.Set(static_cast<double>(table_.jobs()));
  parts_.metrics.scopes.Set(static_cast<double>(table_.scopes()));
  parts_.metrics.waiting_ranks.Set(static_cast<double>(table_.waiting_ranks()));
}

Agreement::Waiting Agreement::TakeCaller(uint64_t call) {
  const auto found = callers_.find(call);
  Waiting caller = std::move(found->second);
  callers_.erase(found);
  return caller;
}

void Agreement::Run(Due due) {
  for (const Note& note : due.notes) {
    const CallIds ids = note.call.request.empty() ? CurrentCall() : note.call;
    const WorkFor names(ids);
    LogLine(note.warn ? spdlog::level::warn : spdlog::level::info, note.text, note.fields);
  }
  if (due.answers.size() > kAnswersInline) {
    const auto answers =
        std::make_shared<std::vector<std::pair<Done, Answer>>>(std::move(due.answers));
    const auto send = [answers] {
      for (auto& [done, answer] : *answers) done(std::move(answer));
    };
    Submit(answers_, due.share, send, send);
  } else {
    for (auto& [done, answer] : due.answers) {
      done(std::move(answer));
      CrashPoint("agreement: one answered");
    }
  }
  for (const std::function<void()>& call : due.calls) call();
}

void Agreement::Submit(WorkerPool& pool, const Shares::Path& share, std::function<void()> run,
                       std::function<void()> refused) {
  const auto named = [call = CurrentCall()](std::function<void()> what) {
    return [call, what = std::move(what)] {
      const WorkFor names(call);
      what();
    };
  };
  pool.Submit(share, named(std::move(run)), named(std::move(refused)));
}

// Whose it is. What a job that is known here reads and writes has one share, and so begins in the
// order in which it was decided.
template <typename Action>
Shares::Path Agreement::ShareOfWork(const Action& action) const {
  if constexpr (requires { action.job; }) {
    return table_.ShareOf(action.job);
  } else if constexpr (requires { action.fetch; }) {
    return table_.ShareOf(action.fetch.scope);
  } else {
    return table_.ShareOf(action.scope);
  }
}

template <typename Action>
void Agreement::Start(Action& action, Due& due) {
  const auto shared = std::make_shared<Action>(std::move(action));
  const auto run = [this, shared] { Happen(Work(*shared, absl::OkStatus())); };
  const auto refused = [this, shared] {
    Happen(Work(*shared, absl::UnavailableError("too much is waiting for the store")));
  };
  due.calls.push_back([this, share = ShareOfWork(*shared), run, refused] {
    Submit(workers_, share, run, refused);
  });
}

void Agreement::Start(AnswerFromStore& answer, Due& due) {
  due.calls.push_back([this, caller = TakeCaller(answer.call), answer] {
    const Done& done = caller.done;
    Submit(
        workers_, caller.share, [this, done, answer] { done(PinnedAnswer(answer)); },
        [done] { done(MakeError(Reason::kOverloaded, "too much is waiting for the store")); });
  });
}

void Agreement::Start(ArmTimer& arm, Due&) {
  timers_[arm.timer.number] =
      parts_.timers.Schedule(arm.at, [this, timer = arm.timer] { Happen(TimerFired{timer}); });
}

void Agreement::Start(CancelTimer& cancel, Due&) {
  const auto found = timers_.find(cancel.number);
  if (found == timers_.end()) return;
  parts_.timers.Cancel(found->second);
  timers_.erase(found);
}

void Agreement::Start(OfferGraph& offer, Due& due) {
  due.calls.push_back([this, offer] { parts_.broker.GraphArrived(offer.graph_key, offer.graph); });
}

// ---- the broker, which has ids of its own for calls

void Agreement::Start(AskBroker& ask, Due& due) {
  due.calls.push_back([this, ask] { Probe(ask); });
}

void Agreement::Probe(const AskBroker& ask) {
  const PlanBroker::CallId call =
      parts_.broker.GetPlan(ask.request, Clock::now() + parts_.options.max_wait,
                            [this, fetch = ask.fetch](const Answer& answer) {
                              Happen(PlanCame{fetch, answer});
                            });
  if (call == 0) return;
  {
    const absl::MutexLock lock(&mutex_);
    if (table_.Wants(ask.fetch)) {
      asked_[ask.fetch.number] = call;
      return;
    }
  }
  parts_.broker.Cancel(call);  // given up meanwhile; no-op if it has been answered
}

void Agreement::Start(GiveUpFetch& give_up, Due& due) {
  const auto found = asked_.find(give_up.number);
  if (found == asked_.end()) return;
  due.calls.push_back([this, call = found->second] { parts_.broker.Cancel(call); });
  asked_.erase(found);
}

void Agreement::Start(HurryFetch& hurry, Due& due) {
  const auto found = asked_.find(hurry.number);
  if (found == asked_.end()) return;
  due.calls.push_back([this, call = found->second] { parts_.broker.DeadlineReached(call); });
}

}  // namespace bucketd
