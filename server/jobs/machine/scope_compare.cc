// Scope: ranks that differ. Two of their graphs are wanted, to name the first node that does.
#include <algorithm>
#include <chrono>
#include <utility>

#include "server/jobs/machine/scope.h"
#include "server/jobs/machine/scope_errors.h"

namespace bucketd {
namespace {

constexpr std::chrono::seconds kMaxCompare{10};

}  // namespace

void Scope::StartComparing() {
  stage_ = Stage::kComparing;
  std::vector<const Presented*> known;
  for (const Presented& presented : ranks_.presented()) {
    if (!presented.calls.empty() && presented.request != nullptr) known.push_back(&presented);
  }
  std::stable_sort(known.begin(), known.end(),
                   [](const Presented* a, const Presented* b) { return a->live > b->live; });
  const auto other = std::find_if(known.begin(), known.end(), [&](const Presented* presented) {
    return presented->graph != known[0]->graph;
  });
  if (other == known.end()) {
    Differ();
    return;
  }
  // The odd one out is named first.
  compared_ = {(*other)->index, known[0]->index};
  for (const size_t index : compared_) ranks_.presented()[index].asked_to_compare = false;
  const SteadyTime::duration left = ranks_.first_deadline() - context_.now;
  if (compare_timer_ != 0) context_.Do(CancelTimer{compare_timer_});
  difference_is_sought_ = false;
  compare_timer_ = context_.NewId();
  context_.Do(ArmTimer{{id_, 0, compare_timer_},
                       context_.now + std::min<SteadyTime::duration>(kMaxCompare, left / 2)});
}

// Whoever differed may have left, or have called again with what the others present: then the ranks
// gather on. Those who are away with a graph count.
bool Scope::StillDiffer() const { return ranks_.signatures() > 1 || ranks_.Groups().size() > 1; }

void Scope::Compare() {
  if (difference_is_sought_) return;
  bool all_here = true;
  for (const size_t index : compared_) {
    const Coming coming = GraphToCompare(ranks_.presented()[index]);
    if (coming == Coming::kNever) {
      Differ();
      return;
    }
    all_here &= coming == Coming::kHere;
  }
  if (!all_here) return;
  difference_is_sought_ = true;
  const auto key = [&](size_t i) { return ranks_.presented()[compared_[i]].request->graph_key; };
  context_.Do(CompareGraphs{id_, compare_timer_, {key(0), key(1)}});
}

Scope::Coming Scope::GraphToCompare(Presented& presented) {
  if (context_.around.HasGraph(presented.request->graph_key)) return Coming::kHere;
  if (presented.fetching() || presented.decoding) return Coming::kComing;
  if (!presented.asked_to_compare) {
    AskForGraph(presented, context_.limits.upload_lease.count());
    return presented.asked_to_compare ? Coming::kComing : Coming::kNever;
  }
  // Back, and without a graph.
  const bool back = std::all_of(presented.asked.begin(), presented.asked.end(),
                                [&](uint32_t rank) { return ranks_.has(rank); });
  return back ? Coming::kNever : Coming::kComing;
}

void Scope::DecodeToCompare(Presented& presented, RankCame& event) {
  const bool compared = presented.index == compared_[0] || presented.index == compared_[1];
  if (!compared || presented.decoding) return;
  presented.decoding = true;
  context_.Do(DecodeGraph{id_, presented.index, event.request->graph_key, presented.graph,
                          std::move(event.request->graph)});
}

void Scope::Handle(const GraphDecoded& event) {
  if (stage_ == Stage::kComparing) ranks_.presented()[event.signature].decoding = false;
}

void Scope::Handle(const DifferenceSought& event) {
  if (stage_ == Stage::kComparing && event.number == compare_timer_) {
    Differ(event.text, event.node);
  }
}

void Scope::Differ(absl::string_view difference, absl::string_view node) {
  Fail(DifferError(*this, compared_, difference, node), AgreementOutcome::kDiffer, false);
}

}  // namespace bucketd
