// The trainers: jobs of differing sizes whose ranks ask any replica, and ask another one by the
// clients' rules where that one does not answer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/server/simulation/world.h"

namespace bucketd::simulation {

class Ranks {
 public:
  // `calm`: when all that breaks is whole again.
  Ranks(World& world, int ranks, Time calm);

  void Begin();
  // Now and then: whoever waits, waits within its deadline.
  void CheckDeadlines();
  bool over() const { return running_ == 0; }
  // What was answered and must still be there is.
  void CheckStore();

  int jobs() const { return static_cast<int>(jobs_.size()); }
  int64_t calls() const { return calls_; }
  // By reason, of ranks that got no plan.
  const std::map<std::string, int64_t>& errors() const { return errors_; }

 private:
  struct Scope {
    std::string name;
    Digest graph{};
  };
  struct Job {
    int number = 0;
    std::string tenant, id, profile;
    uint32_t size = 0;
    std::vector<Scope> scopes;
    uint64_t generations = 1;
    // Of the generation that runs.
    uint64_t generation = 0;
    int wrong_rank = -1;   // presents something else than the others
    int absent_rank = -1;  // never comes
    bool is_cut_short = false;
    Time began{};
    std::vector<Time> deadlines;  // of ranks
    std::vector<RankCallPtr> asking;
    std::vector<int> at;  // the replica that a rank asks
    uint32_t left = 0;    // ranks that are not through
  };

  void MakeJob(uint32_t size);
  void MakeGraphs();
  void BeginGeneration(Job& job);
  void CutShort(Job& job, uint64_t generation);
  void RankIsThrough(Job& job);
  void Ask(Job& job, const Subject& rank, int replica, bool again);
  void Answered(Job& job, const Subject& rank, bool again, const JobRoutes::Answer& answer);
  void AgreedOn(Job& job, const Subject& rank, bool again, const PlanAnswer& answer);
  void Upload(Job& job, const Subject& rank, bool again);
  void Retry(Job& job, const Subject& rank, bool again);
  void Failed(Job& job, const Subject& rank, bool again, const absl::Status& status);
  v1::GetPlanRequest RequestOf(const Job& job, const Subject& rank) const;
  bool IsCurrent(const Job& job, const Subject& rank) const {
    return job.generation == rank.generation;
  }

  World& world_;
  Random random_;
  const Time calm_;
  std::vector<Digest> graphs_;
  std::vector<Job> jobs_;
  int running_ = 0;
  int64_t calls_ = 0;
  std::map<std::string, int64_t> errors_;
};

}  // namespace bucketd::simulation
