#include "server/rpc/peer_jobs.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace bucketd {
namespace {

constexpr std::chrono::seconds kPatience{2};

std::string WhyNotReached(const absl::Status& status) {
  if (absl::IsUnimplemented(status)) return "it is of an older version, which cannot be asked";
  if (absl::IsDeadlineExceeded(status)) return "it did not answer within 2 s";
  return std::string(status.message());
}

// What comes back from all, in the order of their addresses.
template <typename Reply>
class Gathering {
 public:
  using Said = std::pair<ReplicaId, absl::StatusOr<Reply>>;
  using Done = std::function<void(std::vector<Said>)>;

  Gathering(const std::vector<ReplicaView>& replicas, Done done) : done_(std::move(done)) {
    for (const ReplicaView& replica : replicas) {
      if (!replica.self) said_.emplace_back(replica.id, absl::UnknownError(""));
    }
    left_ = said_.size() + 1;  // and whoever asks
  }

  // Calls `peers.*ask` for each. Once.
  template <typename Request, typename Ask>
  static void Begin(const std::shared_ptr<Gathering>& all, PeerCalls& peers, Ask ask,
                    Request request) {
    const SteadyTime deadline = std::chrono::steady_clock::now() + kPatience;
    std::vector<ReplicaId> whom;
    for (const Said& one : all->said_) whom.push_back(one.first);
    for (size_t i = 0; i < whom.size(); ++i) {
      request.set_incarnation(whom[i].incarnation);
      (peers.*ask)(whom[i].address, request, deadline,
                   [all, i](absl::StatusOr<Reply> reply) { all->Came(i, std::move(reply)); });
    }
    all->OneLess();
  }

 private:
  void Came(size_t which, absl::StatusOr<Reply> reply) {
    {
      const absl::MutexLock lock(&mutex_);
      said_[which].second = std::move(reply);
    }
    OneLess();
  }
  void OneLess() {
    std::vector<Said> all;
    {
      const absl::MutexLock lock(&mutex_);
      if (--left_ > 0) return;
      all = std::move(said_);
    }
    done_(std::move(all));
  }

  const Done done_;
  absl::Mutex mutex_;
  std::vector<Said> said_;  // guarded once it has begun
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;
};

template <typename Answer>
void AddNotReached(const ReplicaId& replica, const absl::Status& status, Answer& answer) {
  v1::NotReached& one = answer.not_reached.emplace_back();
  one.set_address(replica.address);
  one.set_why(WhyNotReached(status));
}

}  // namespace

JobsElsewhere PeerJobs::Show(const v1::ShowJobsRequest& asked) {
  using All = Gathering<v1::ShowJobsReply>;
  std::promise<std::vector<All::Said>> promise;
  const auto gathering = std::make_shared<All>(
      members_.List(), [&](std::vector<All::Said> all) { promise.set_value(std::move(all)); });
  All::Begin(gathering, peers_, &PeerCalls::ShowJobs, asked);
  JobsElsewhere there;
  for (auto& [replica, reply] : promise.get_future().get()) {
    if (!reply.ok()) {
      AddNotReached(replica, reply.status(), there);
      continue;
    }
    there.truncated |= reply->truncated();
    for (v1::JobStatus& job : *reply->mutable_jobs()) there.jobs.push_back(std::move(job));
  }
  return there;
}

// Trainers release many jobs in a period, each on one of few threads.
bool PeerJobs::MayBeat() {
  const absl::MutexLock lock(&mutex_);
  const SteadyTime now = std::chrono::steady_clock::now();
  if (beat_.has_value() && now - *beat_ < members_.period()) return false;
  beat_ = now;
  return true;
}

void PeerJobs::Forget(const v1::ForgetJobsRequest& jobs,
                      std::function<void(ForgottenElsewhere)> done) {
  if (jobs.by_operator() || MayBeat()) members_.Beat().IgnoreError();  // else it asks whom it knows
  using All = Gathering<v1::ForgetJobsReply>;
  const auto gathering = std::make_shared<All>(
      members_.List(), [done = std::move(done)](const std::vector<All::Said>& all) {
        ForgottenElsewhere there;
        for (const auto& [replica, reply] : all) {
          if (reply.ok()) {
            there.jobs.insert(reply->job_id().begin(), reply->job_id().end());
          } else {
            AddNotReached(replica, reply.status(), there);
          }
        }
        done(std::move(there));
      });
  All::Begin(gathering, peers_, &PeerCalls::ForgetJobs, jobs);
}

ForgottenElsewhere PeerJobs::Forget(const v1::ForgetJobsRequest& jobs) {
  std::promise<ForgottenElsewhere> promise;
  Forget(jobs, [&](ForgottenElsewhere there) { promise.set_value(std::move(there)); });
  return promise.get_future().get();
}

}  // namespace bucketd
