#include "server/admin/job_list.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace bucketd {
namespace {

bool IsAsked(const v1::ShowJobsRequest& asked, const v1::JobStatus& job) {
  if (asked.has_tenant() && job.tenant() != asked.tenant()) return false;
  return asked.id().empty() || job.id() == asked.id();
}

bool Before(const v1::JobStatus& a, const v1::JobStatus& b) {
  const auto rank = [](const v1::JobStatus& job) {
    return std::make_tuple(job.state() != "waiting", job.since_ms());
  };
  const auto name = [](const v1::JobStatus& job) {
    return std::tie(job.tenant(), job.id(), job.scope());
  };
  return rank(a) != rank(b) ? rank(a) < rank(b) : name(a) < name(b);
}

bool IsUnderWay(const v1::JobStatus& job) {
  return job.state() == "waiting" || job.state() == "planning";
}

}  // namespace

bool KeepAsked(const v1::ShowJobsRequest& asked, std::vector<v1::JobStatus>& jobs) {
  std::erase_if(jobs, [&](const v1::JobStatus& job) { return !IsAsked(asked, job); });
  std::sort(jobs.begin(), jobs.end(), Before);
  const size_t limit = static_cast<size_t>(std::clamp(asked.limit(), 0, kMostJobs));
  if (jobs.size() <= limit) return false;
  jobs.resize(limit);
  return true;
}

void KeepOncePerScope(std::vector<v1::JobStatus>& jobs) {
  using Said = std::pair<bool, uint64_t>;  // by the holder of the lease; the generation
  std::map<std::pair<std::string, std::string>, Said> now;
  for (const v1::JobStatus& job : jobs) {
    Said& said = now[{job.tenant(), job.id()}];
    said = std::max(said, {job.has_lease(), job.generation()});
  }
  std::erase_if(jobs, [&](const v1::JobStatus& job) {
    return job.generation() != now[{job.tenant(), job.id()}].second;
  });
  const auto scope = [](const v1::JobStatus& job) {
    return std::tie(job.tenant(), job.id(), job.scope());
  };
  std::sort(jobs.begin(), jobs.end(), [&](const v1::JobStatus& a, const v1::JobStatus& b) {
    const auto worth = [](const v1::JobStatus& job) {
      return std::make_tuple(!IsUnderWay(job), !job.has_lease(), job.replica());
    };
    return scope(a) != scope(b) ? scope(a) < scope(b) : worth(a) < worth(b);
  });
  const auto same = [&](const v1::JobStatus& a, const v1::JobStatus& b) {
    return scope(a) == scope(b);
  };
  jobs.erase(std::unique(jobs.begin(), jobs.end(), same), jobs.end());
}

}  // namespace bucketd
