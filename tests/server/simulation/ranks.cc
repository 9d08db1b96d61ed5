#include "tests/server/simulation/ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"
#include "passes/text/bir.h"
#include "server/base/errors.h"
#include "server/jobs/pin_index.h"
#include "server/jobs/pin_records.h"

namespace bucketd::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{180};  // of a rank
constexpr seconds kLateness{2};    // of an answer, beyond that
constexpr seconds kRecovery{40};   // after calm: leases have moved, ranks have come again
constexpr uint32_t kLargest = 8192;
constexpr int kGraphs = 60;
constexpr int kReplicas = 5;

// A step that gathers two parameters.
std::string TextOf(int number) {
  return absl::StrCat(R"(graph @step forward mesh(dp=8) {
  %x = input : bf16[8,64]
  %p = param(layers.0.weight) : bf16[)",
                      number + 1, R"(,64]
  %q = param(layers.1.weight) : bf16[16,64]
  %g = all_gather(%p) group=dp
  %w = wait(%g)
  %h = mm(%x, %w)
  %k = all_gather(%q) group=dp
  %v = wait(%k)
  %y = mm(%h, %v)
  return %y
})");
}

}  // namespace

Ranks::Ranks(World& world, int ranks, Time calm)
    : world_(world), random_(world.random.Next()), calm_(calm) {
  MakeGraphs();
  auto left = static_cast<uint32_t>(ranks);
  std::vector<uint32_t> sizes;
  while (left > 0) {
    // As many jobs of 2 to 4 ranks as of 4096 to 8192.
    const uint32_t octave = 1U << random_.Between(1, 12);
    const uint32_t size =
        std::min({octave + static_cast<uint32_t>(random_.Below(octave + 1)), kLargest, left});
    sizes.push_back(size);
    left -= size;
  }
  jobs_.reserve(sizes.size());
  for (const uint32_t size : sizes) MakeJob(size);
}

void Ranks::MakeGraphs() {
  static const std::vector<GraphPtr>* made = [] {
    auto* graphs = new std::vector<GraphPtr>;
    for (int number = 0; number < kGraphs; ++number) {
      auto parsed = ParseBir(TextOf(number));
      EXPECT_TRUE(parsed.ok()) << parsed.status();
      auto normal = Normalize(parsed->graph);
      EXPECT_TRUE(normal.ok()) << normal.status();
      graphs->push_back(std::make_shared<const Graph>(std::move(normal->graph)));
    }
    return graphs;
  }();
  for (const GraphPtr& graph : *made) {
    graphs_.push_back(GraphDigest(*graph));
    world_.AddGraph(graphs_.back(), graph);
  }
}

void Ranks::MakeJob(uint32_t size) {
  Job job;
  job.number = jobs();
  job.tenant = absl::StrCat("team-", random_.Below(3));
  job.id = absl::StrCat("job-", job.number);
  job.profile = random_.Chance(70) ? "site@latest" : "";
  job.size = size;
  const bool is_large = size > 512;
  const int64_t scopes = is_large ? 1 : random_.Between(1, 3);
  for (int64_t scope = 0; scope < scopes; ++scope) {
    job.scopes.push_back({absl::StrCat(scope, "/fw"), graphs_[random_.Below(graphs_.size())]});
  }
  job.generations = static_cast<uint64_t>(random_.Between(1, is_large ? 2 : 3));
  job.asking.resize(size);
  job.deadlines.resize(size);
  job.at.resize(size);
  jobs_.push_back(std::move(job));
}

void Ranks::Begin() {
  for (Job& job : jobs_) {
    ++running_;
    world_.threads.At(milliseconds(random_.Between(0, 40'000)), nullptr,
                      [this, &job] { BeginGeneration(job); });
  }
}

void Ranks::BeginGeneration(Job& job) {
  ++job.generation;
  job.began = world_.threads.now();
  job.left = job.size;
  job.is_cut_short = false;
  job.wrong_rank = random_.Chance(6) ? static_cast<int>(random_.Below(job.size)) : -1;
  job.absent_rank =
      job.wrong_rank < 0 && random_.Chance(10) ? static_cast<int>(random_.Below(job.size)) : -1;
  world_.history.Note("generation begins", {.job = job.number, .generation = job.generation});
  const int64_t spread_ms = random_.Between(50, 8000);
  const int late = random_.Chance(25) ? static_cast<int>(random_.Below(job.size)) : -1;
  for (int rank = 0; rank < static_cast<int>(job.size); ++rank) {
    if (rank == job.absent_rank) {
      RankIsThrough(job);
      continue;
    }
    const int64_t at = rank == late ? random_.Between(8000, 40'000) : random_.Between(0, spread_ms);
    const Subject subject{job.number, job.generation, 0, rank};
    world_.threads.At(job.began + milliseconds(at), nullptr, [this, &job, subject] {
      if (!IsCurrent(job, subject)) return;
      Ask(job, subject, static_cast<int>(random_.Below(kReplicas)), false);
    });
  }
  // Some are restarted while they wait.
  if (job.generation < job.generations && random_.Chance(15)) {
    world_.threads.At(job.began + milliseconds(random_.Between(500, 20'000)), nullptr,
                      [this, &job, generation = job.generation] { CutShort(job, generation); });
  }
}

void Ranks::CutShort(Job& job, uint64_t generation) {
  if (job.generation != generation || job.left == 0) return;
  for (size_t rank = 0; rank < job.asking.size(); ++rank) {
    if (job.asking[rank] != nullptr) world_.GiveUp(job.asking[rank], job.at[rank]);
    job.asking[rank] = nullptr;
  }
  BeginGeneration(job);
}

void Ranks::RankIsThrough(Job& job) {
  if (--job.left > 0) return;
  if (job.generation == job.generations) {
    --running_;
    return;
  }
  world_.threads.At(world_.threads.now() + milliseconds(random_.Between(200, 5000)), nullptr,
                    [this, &job, generation = job.generation] {
                      if (job.generation == generation) BeginGeneration(job);
                    });
}

v1::GetPlanRequest Ranks::RequestOf(const Job& job, const Subject& rank) const {
  v1::GetPlanRequest request;
  const Scope& scope = job.scopes[static_cast<size_t>(rank.scope)];
  request.set_tenant(job.tenant);
  request.set_graph_digest(std::string(AsBytes(scope.graph)));
  v1::MeshDim& dim = *request.mutable_mesh()->add_dims();
  dim.set_name("dp");
  dim.set_size(8);
  request.mutable_mesh()->set_device_type("cuda");
  v1::PlanOptions& options = *request.mutable_options();
  options.set_cost_profile(job.profile);
  if (rank.rank == job.wrong_rank) options.set_prefetch_forward(2);
  v1::Job& message = *request.mutable_job();
  message.set_id(job.id);
  message.set_generation(rank.generation);
  message.set_scope(scope.name);
  message.add_rank(static_cast<uint32_t>(rank.rank));
  message.set_size(job.size);
  return request;
}

// ---- a rank

// `again`: it has had its plan, and has lost it.
void Ranks::Ask(Job& job, const Subject& rank, int replica, bool again) {
  const auto index = static_cast<size_t>(rank.rank);
  if (job.asking[index] == nullptr) {  // else it is the same call, at another replica
    job.deadlines[index] = world_.threads.now() + kPatience;
    world_.history.Asked(rank);
  }
  ++calls_;
  auto call = std::make_shared<RankCall>();
  call->id = world_.NewCall(rank);
  call->rank = rank;
  call->request = RequestOf(job, rank);
  call->deadline = job.deadlines[index];
  call->done = [this, &job, rank, again](const JobRoutes::Answer& answer) {
    if (IsCurrent(job, rank)) Answered(job, rank, again, answer);
  };
  job.asking[index] = call;
  job.at[index] = replica;
  world_.history.Note("asks", rank, static_cast<uint64_t>(replica));
  world_.Call(call, replica);
}

void Ranks::CheckDeadlines() {
  for (const Job& job : jobs_) {
    for (size_t rank = 0; rank < job.asking.size(); ++rank) {
      const RankCallPtr& call = job.asking[rank];
      if (call == nullptr || call->ended || world_.threads.now() < call->deadline + kLateness) {
        continue;
      }
      world_.history.Wrong(call->rank,
                           absl::StrCat("nobody has answered rank ", rank, " of job ", job.number,
                                        " at replica ", job.at[rank], " by its deadline"));
    }
  }
}

void Ranks::Answered(Job& job, const Subject& rank, bool again, const JobRoutes::Answer& answer) {
  if (!answer.ok()) {
    world_.history.Note("is told an error", rank, static_cast<uint64_t>(answer.status().code()));
    const bool passes = absl::IsUnavailable(answer.status()) ||
                        absl::IsCancelled(answer.status()) ||
                        absl::IsResourceExhausted(answer.status());
    const Time left = job.deadlines[static_cast<size_t>(rank.rank)] - world_.threads.now();
    if (passes && left > seconds(2)) {
      Retry(job, rank, again);
    } else {
      Failed(job, rank, again, answer.status());
    }
  } else if (answer->outcome == PlanOutcome::kGraphRequired) {
    Upload(job, rank, again);
  } else {
    AgreedOn(job, rank, again, *answer);
  }
}

void Ranks::AgreedOn(Job& job, const Subject& rank, bool again, const PlanAnswer& answer) {
  const std::string value = ValueOf(answer);
  world_.history.Note(answer.reply == nullptr ? "is told to run unplanned" : "has a plan", rank,
                      answer.reply == nullptr ? 0 : answer.reply->plan_sha256[0]);
  world_.history.Agreed(rank, value);
  job.asking[static_cast<size_t>(rank.rank)] = nullptr;
  Subject next = rank;
  const bool asks_again = !again && random_.Chance(2);
  if (!asks_again && ++next.scope == static_cast<int>(job.scopes.size())) {
    RankIsThrough(job);
    return;
  }
  const int64_t after = asks_again ? random_.Between(10, 30'000) : random_.Between(5, 2000);
  world_.threads.At(world_.threads.now() + milliseconds(after), nullptr,
                    [this, &job, next, asks_again] {
                      if (!IsCurrent(job, next)) return;
                      Ask(job, next, static_cast<int>(random_.Below(kReplicas)), asks_again);
                    });
}

// To the replica that asked for it, which is then asked again.
void Ranks::Upload(Job& job, const Subject& rank, bool again) {
  world_.history.Note("is asked for its graph", rank);
  const int replica = job.at[static_cast<size_t>(rank.rank)];
  const Digest digest = job.scopes[static_cast<size_t>(rank.scope)].graph;
  const std::string key = GraphKey(job.tenant, digest);
  // Some take their time, and another one is asked meanwhile; some break off.
  const int64_t took = random_.Chance(5) ? random_.Between(9'000, 15'000) : random_.Between(5, 600);
  const GraphPtr graph = random_.Chance(5) ? nullptr : world_.GraphOf(digest);
  if (Node* node = world_.Serving(replica)) {
    const Time sent = world_.threads.now() + milliseconds(took);
    const Time starts = random_.Chance(50) ? world_.threads.now() : sent;
    world_.threads.At(starts, &node->process(), [this, node, key, graph, sent] {
      const uint64_t upload = node->BeginUpload(key);
      world_.threads.At(sent, &node->process(),
                        [node, key, graph, upload] { node->EndUpload(key, upload, graph); });
    });
  }
  world_.threads.At(world_.threads.now() + milliseconds(took + 1), nullptr,
                    [this, &job, rank, replica, again] {
                      if (IsCurrent(job, rank)) Ask(job, rank, replica, again);
                    });
}

void Ranks::Retry(Job& job, const Subject& rank, bool again) {
  const int at = job.at[static_cast<size_t>(rank.rank)];
  const int next = (at + 1 + static_cast<int>(random_.Below(kReplicas - 1))) % kReplicas;
  world_.threads.At(world_.threads.now() + milliseconds(random_.Between(50, 1500)), nullptr,
                    [this, &job, rank, next, again] {
                      if (IsCurrent(job, rank)) Ask(job, rank, next, again);
                    });
}

void Ranks::Failed(Job& job, const Subject& rank, bool again, const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  ++errors_[reason.empty() ? absl::StatusCodeToString(status.code()) : reason];
  job.asking[static_cast<size_t>(rank.rank)] = nullptr;
  const bool is_expected = (reason == ReasonName(Reason::kRanksDiffer) && job.wrong_rank >= 0) ||
                           (reason == ReasonName(Reason::kRanksMissing) &&
                            (job.wrong_rank >= 0 || job.absent_rank >= 0 || again)) ||
                           // Without its store a replica agrees without a pin, and whoever has the
                           // job next knows nothing.
                           world_.history.StoreFailedSince(job.began) ||
                           job.deadlines[static_cast<size_t>(rank.rank)] < calm_ + kRecovery;
  if (!is_expected) {
    world_.history.Wrong(
        rank, absl::StrCat("rank ", rank.rank, " of job ", rank.job, " generation ",
                           rank.generation, " scope ", rank.scope, again ? ", asking again," : "",
                           " has no plan: ", status.ToString()));
  }
  RankIsThrough(job);
}

// ---- afterwards

void Ranks::CheckStore() {
  for (const Job& job : jobs_) {
    for (size_t scope = 0; scope < job.scopes.size(); ++scope) {
      const Subject subject{job.number, job.generation, static_cast<int>(scope), -1};
      const std::string agreed = world_.history.AgreedOf(subject);
      if (agreed.empty() || agreed == "unplanned" || world_.history.StoreFailedSince(job.began)) {
        continue;
      }
      const std::string key = PinKey(job.tenant, job.id, job.scopes[scope].name);
      const auto value = world_.engine.store().GetRecord(Shelf::kPins, key);
      const std::optional<Pin> pin = value.ok() ? PinIn(key, *value) : std::nullopt;
      if (!pin.has_value() || ToHex(pin->plan_sha256) != agreed) {
        world_.history.Wrong(subject,
                             absl::StrCat("what ", job.id, " has agreed on is not pinned"));
        continue;
      }
      const auto plan = world_.engine.store().GetPlan(pin->plan_key);
      if (!plan.ok() || !plan->has_value() || Sha256(**plan) != pin->plan_sha256) {
        world_.history.Wrong(subject,
                             absl::StrCat("the plan that ", job.id, " has agreed on is ",
                                          !plan.ok()           ? plan.status().ToString()
                                          : !plan->has_value() ? "not in the store"
                                                               : "another one in the store",
                                          ": ", pin->plan_key));
      }
    }
  }
}

}  // namespace bucketd::simulation
