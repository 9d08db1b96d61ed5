#include "tests/passes/overlap_bucket_test_util.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

#include "passes/base/index.h"
#include "passes/modes/pass_registry.h"
#include "passes/plan/verify.h"
#include "passes/sim/simulator.h"
#include "tests/passes/pass_test_util.h"

namespace bucketd::testing {
namespace {

struct Word {
  std::string name;  // "a1"
  std::vector<std::string> reads;
  GroupId group = 0;
  bool backward = false;
  DType dtype = DType::kBF16;
  char kind() const { return name[0]; }
  std::string number() const { return name.substr(1); }
};

Word Parse(absl::string_view text) {
  Word word;
  std::string rest(text);
  if (const size_t open = rest.find('('); open != std::string::npos) {
    word.reads = absl::StrSplit(rest.substr(open + 1, rest.size() - open - 2), ',');
    rest.resize(open);
  }
  if (const size_t colon = rest.find(':'); colon != std::string::npos) {
    word.backward = rest.substr(colon) == ":bw";
    if (rest.substr(colon) == ":f32") word.dtype = DType::kF32;
    rest.resize(colon);
  }
  if (const size_t at = rest.find('@'); at != std::string::npos) {
    word.group = rest[at + 1] - '0';
    rest.resize(at);
  }
  word.name = rest;
  return word;
}

}  // namespace

Schedule::Schedule(const std::string& words,
                   const std::map<std::string, std::vector<std::string>>& hidden,
                   const std::map<std::string, int64_t>& exposed) {
  Net net(8);
  net.AddGroup("tp", 8);
  net.AddGroup("ep", 8);
  std::vector<Word> all;
  for (const absl::string_view text : absl::StrSplit(words, ' ', absl::SkipEmpty())) {
    all.push_back(Parse(text));
  }
  nodes["x"] = net.Input("x", {64, 64});
  for (const Word& word : all) {
    if (word.kind() != 'a') continue;
    const std::string name = "p" + word.number();
    nodes[name] = net.Typed(word.dtype).Parameter(name, {8, 64});
  }
  net.Typed(DType::kBF16);
  std::map<std::string, std::string> start_of;  // by number
  std::vector<std::pair<std::string, std::string>> launches;
  for (const Word& word : all) {
    net.OnGroup(word.group).Typed(word.dtype);
    net.Going(word.backward ? Direction::kBackward : Direction::kNone);
    std::vector<NodeId> inputs;
    for (const std::string& read : word.reads) inputs.push_back(nodes.at(read));
    NodeId n = kNoNode;
    if (word.kind() == 'a') {
      n = net.Start(CollectiveKind::kAllGather, word.name,
                    inputs.empty() ? nodes.at("p" + word.number()) : inputs[0]);
      start_of[word.number()] = word.name;
    } else if (word.kind() == 'r') {
      n = net.Start(CollectiveKind::kReduceScatter, word.name,
                    inputs.empty() ? nodes.at("m" + word.number()) : inputs[0], ReduceOp::kAvg);
      start_of[word.number()] = word.name;
    } else if (word.kind() == 'w') {
      n = net.Wait(word.name, nodes.at(start_of.at(word.number())));
      launches.emplace_back(start_of.at(word.number()), word.name);
    } else {
      inputs.insert(inputs.begin(), nodes.at("x"));
      const bool small = word.name.substr(0, 2) == "es";  // a shard that a gather may read
      n = net.Call(word.name, inputs, small ? Shape{8, 64} : Shape{64, 64},
                   word.kind() == 'm' ? uint8_t{kComputeFlag} : uint8_t{0});
    }
    nodes[word.name] = n;
  }
  for (const Word& word : all) {
    if (word.kind() == 'w') net.Out(nodes.at(word.name), SlotKind::kOutput);
  }
  graph = std::make_unique<Graph>(net.Build());
  costs = std::make_unique<Costs>(CostsOf(*graph));
  for (const auto& [start, wait] : launches) {
    LaunchOverlap launch;
    launch.collective = graph->collective_of(nodes.at(start));
    launch.est_ps = kMs;
    const auto it = hidden.find(start);
    launch.exposed_ps = it == hidden.end() ? kMs : 0;
    if (const auto some = exposed.find(start); some != exposed.end()) {
      launch.exposed_ps = some->second;
    }
    if (it != hidden.end()) {
      for (const std::string& by : it->second) launch.hidden_by.push_back(nodes.at(by));
    }
    overlap.push_back(std::move(launch));
  }
}

PlanOptions FreeOptions() {
  PlanOptions options;
  options.mode = "overlap";
  options.backend = "gloo";
  options.numerics = Numerics::kFree;
  options.memory_limit_bytes = int64_t{1} << 40;
  return options;
}

absl::StatusOr<Bucketed> TryBucket(const Schedule& schedule, const PlanOptions& options,
                                   const std::vector<Bucket>& buckets) {
  Bucketed result;
  result.plan = ProgramOrder(*schedule.graph);
  PassContext context(*schedule.graph, *schedule.costs, options);
  context.program_order = Simulate(*schedule.graph, result.plan, *schedule.costs).prediction;
  context.overlap = schedule.overlap;
  if (!buckets.empty()) {
    // Each stands where its first member stood; its other members and waits are there no longer.
    result.plan.buckets = buckets;
    std::vector<Step> order;
    for (const Step& step : result.plan.order) {
      const CollectiveId c = schedule.graph->collective_of(step.id);
      bool gone = false;
      for (size_t b = 0; b < buckets.size() && c >= 0; ++b) {
        const std::vector<NodeId>& members = buckets[b].members;
        const Collective& collective = schedule.graph->collective(c);
        if (std::find(members.begin(), members.end(), collective.start) == members.end()) continue;
        gone = true;
        const auto id = static_cast<int32_t>(b);
        if (step.id == members.front()) order.push_back({Step::Kind::kStart, id});
        const NodeId first = schedule.graph->collective_of(members.front());
        if (step.id == schedule.graph->collective(first).wait) {
          order.push_back({Step::Kind::kWait, id});
        }
      }
      if (!gone) order.push_back(step);
    }
    result.plan.order = order;
    context.overlap.clear();
  }
  absl::StatusOr<std::unique_ptr<Pass>> pass = MakePass("bucket-overlap");
  if (!pass.ok()) return pass.status();
  const absl::StatusOr<bool> changed = (*pass)->Run(context, result.plan);
  if (!changed.ok()) return changed.status();
  result.changed = *changed;
  result.overlap = context.overlap;
  const absl::Status legal = VerifyPlan(*schedule.graph, result.plan);
  if (!legal.ok()) return absl::InternalError(legal.message());
  return result;
}

Bucketed BucketOverlap(const Schedule& schedule, const PlanOptions& options) {
  absl::StatusOr<Bucketed> result = TryBucket(schedule, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : Bucketed();
}

std::string Words(const Graph& graph, const Plan& plan) {
  return Words(graph, plan, [&](const Step& step, const Bucket& bucket) {
    const bool gather = graph.node_name(bucket.members.front())[0] == 'a';
    std::string word = step.kind == Step::Kind::kWait ? "W" : (gather ? "A" : "R");
    for (const NodeId member : bucket.members) {
      absl::StrAppend(&word, graph.node_name(member).substr(1));
    }
    return word;
  });
}

std::vector<NodeId> Unhidden(const Graph& graph, const Plan& plan,
                             const std::vector<LaunchOverlap>& before) {
  std::vector<int32_t> position(Index(graph.size()), -1);
  for (size_t i = 0; i < plan.order.size(); ++i) {
    const Step& step = plan.order[i];
    if (step.kind == Step::Kind::kNode) {
      position[Index(step.id)] = static_cast<int32_t>(i);
      continue;
    }
    for (const NodeId member : plan.buckets[Index(step.id)].members) {
      const NodeId wait = graph.collective(graph.collective_of(member)).wait;
      position[Index(step.kind == Step::Kind::kStart ? member : wait)] = static_cast<int32_t>(i);
    }
  }
  std::vector<NodeId> lost;
  for (const LaunchOverlap& launch : before) {
    const Collective& c = graph.collective(launch.collective);
    for (const NodeId n : launch.hidden_by) {
      if (position[Index(n)] <= position[Index(c.start)] ||
          position[Index(n)] >= position[Index(c.wait)]) {
        lost.push_back(n);
      }
    }
  }
  return lost;
}

Schedule RandomSchedule(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const uint32_t groups = 1 + below(3);
  std::vector<std::string> words;
  std::vector<std::string> open, made;  // numbers not yet waited for; what may be read
  int next = 0;
  const uint32_t length = 6 + below(40);
  std::vector<size_t> opened_at(256), closed_at(256);
  const auto close = [&](size_t i) {
    words.push_back("w" + open[i]);
    closed_at[static_cast<size_t>(std::stoi(open[i]))] = words.size() - 1;
    made.push_back("w" + open[i]);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
  };
  const auto some_reads = [&] {
    std::vector<std::string> reads;
    for (uint32_t k = below(3); k > 0 && !made.empty(); --k) {
      const std::string& read =
          made[made.size() - 1 - below(std::min<uint32_t>(6, static_cast<uint32_t>(made.size())))];
      const char kind = read[0];
      if (kind == 'w') continue;  // shapes differ by kind; waits are read by e words below
      if (std::find(reads.begin(), reads.end(), read) == reads.end()) reads.push_back(read);
    }
    if (!made.empty() && below(2) == 0) {
      const std::string& read = made[below(static_cast<uint32_t>(made.size()))];
      if (std::find(reads.begin(), reads.end(), read) == reads.end()) reads.push_back(read);
    }
    return reads.empty() ? std::string() : absl::StrCat("(", absl::StrJoin(reads, ","), ")");
  };
  std::vector<std::string> starts;
  while (words.size() < length || !open.empty()) {
    const uint32_t what = words.size() >= length ? 9 : below(10);
    const std::string number = std::to_string(next);
    const std::string group = absl::StrCat("@", below(groups));
    if (what < 3) {
      // A gather of a parameter, or of a shard that an op makes.
      if (below(4) == 0) {
        words.push_back(absl::StrCat("es", number, some_reads()));
        words.push_back(absl::StrCat("a", number, group, "(es", number, ")"));
      } else {
        words.push_back(absl::StrCat("a", number, group));
      }
      opened_at[static_cast<size_t>(next++)] = words.size() - 1;
      starts.push_back("a" + number);
      open.push_back(number);
    } else if (what < 6) {
      words.push_back(absl::StrCat("m", number, some_reads()));
      made.push_back("m" + number);
      if (below(2) == 0) {
        words.push_back(absl::StrCat("r", number, group));
        opened_at[static_cast<size_t>(next)] = words.size() - 1;
        starts.push_back("r" + number);
        open.push_back(number);
      }
      ++next;
    } else if (what < 7) {
      words.push_back(absl::StrCat("e", number, some_reads()));
      made.push_back("e" + number);
      ++next;
    } else if (!open.empty()) {
      close(below(static_cast<uint32_t>(open.size())));
    }
  }
  std::map<std::string, std::vector<std::string>> hidden;
  std::map<std::string, int64_t> exposed;
  for (const std::string& start : starts) {
    const auto number = static_cast<size_t>(std::stoi(start.substr(1)));
    if (below(2) == 0) continue;
    for (size_t i = opened_at[number] + 1; i < closed_at[number]; ++i) {
      const char kind = words[i][0];
      const bool may_hide =
          kind == 'm' || (kind == 'e' && below(2) == 0) || (kind == 'w' && below(4) == 0);
      if (!may_hide || below(3) == 0 || words[i].substr(0, 2) == "es") continue;
      hidden[start].push_back(Parse(words[i]).name);
    }
    if (hidden.count(start) > 0 && below(4) == 0) exposed[start] = kMs / 4;
  }
  return Schedule(absl::StrJoin(words, " "), hidden, exposed);
}

}  // namespace bucketd::testing
