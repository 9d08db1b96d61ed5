#include "passes/auto/order_search.h"

#include <algorithm>
#include <map>
#include <utility>

#include "passes/base/cancellation.h"
#include "passes/ir/bucket_key.h"

namespace bucketd::search {
namespace {

// The first of `size` places from `first` on, and around the end, that fits; `size`: none does.
template <typename F>
size_t FirstFrom(size_t first, size_t size, F fits) {
  size_t at = first;
  for (size_t tries = 0; tries < size; ++tries) {
    if (fits(at)) return at;
    at = at + 1 == size ? 0 : at + 1;
  }
  return size;
}

}  // namespace

OrderSearch::OrderSearch(Search& search)
    : search_(search),
      problem_(search.problem_),
      random_(search.problem_.tuning.seed),
      replay_(search.problem_, search.limit_) {
  std::map<BucketKey, int32_t> classes;
  for (size_t i = 0; i < problem_.transfers.size(); ++i) {
    const Collective& c = problem_.graph->collective(static_cast<CollectiveId>(i));
    const auto it = classes.emplace(BucketKey::Of(c), static_cast<int32_t>(classes.size())).first;
    class_of_.push_back(problem_.transfers[i].mergeable ? it->second : -1);
  }
  marked_.assign(Index(problem_.size()), 0);
  candidate_ = search_.other_;
  if (candidate_.order.empty() || !Try(kNever)) return;
  best_ = *tried_;
  best_score_ = tried_score_;
}

void OrderSearch::WorkUntil(int64_t placed, int64_t enough_ps) {
  if (search_.best_score_ < best_score_) {
    best_ = search_.best_.decoded;
    best_score_ = search_.best_score_;
    round_ = 0;
  }
  while (placed_ < placed && (best_score_.over || best_score_.first > enough_ps) &&
         !IsCancelled()) {
    Step();
  }
}

bool OrderSearch::Try(int64_t cutoff_ps) {
  // Under the evaluator scores are no times: any order within its ceiling may have the better one.
  tried_ = replay_.Run(candidate_, search_.evaluator_ == nullptr ? cutoff_ps : search_.ceiling_ps_);
  placed_ += (replay_.placed() + problem_.size() / kClearsOfADecode) / kReplaysOfADecode + 1;
  if (tried_ == nullptr) return false;
  const int64_t before = search_.placed_;
  tried_score_ = search_.Offer(*tried_, cutoff_ps);
  placed_ += search_.placed_ - before;  // what the score took
  return true;
}

// Every cycle begins at the best order.
void OrderSearch::BeginCycle() {
  if (2 * known_in_cycle_ > kCycle && problem_.tuning.Has(Part::kLooser)) ++stale_;
  known_in_cycle_ = 0;
  at_ = best_;
  score_ = best_score_;
}

// What an order may take to be gone on from.
int64_t OrderSearch::Cutoff() const {
  if (score_.over) return Search::CutoffOf(score_);
  const int64_t cycle = round_ / kCycle, left = kCycle - round_ % kCycle;
  const int32_t loose = kLoose[static_cast<size_t>(cycle) % std::size(kLoose)] +
                        kLooser * static_cast<int32_t>(std::min(stale_, kMostLooser));
  return score_.first + Share(best_score_.first, loose) * left / kCycle;
}

bool OrderSearch::ChangeSome() {
  candidate_.order = at_.order;
  candidate_.batches = at_.batches;
  size_t more = Below(3) == 0 ? Below(3) : 0;
  // What is near is known.
  if (stale_ > 0) more += Below(1 + std::min(stale_, kMostMoreChanges));
  bool changed = Change();
  for (; more > 0; --more) changed = Change() || changed;
  return changed;
}

void OrderSearch::Step() {
  if (round_ % kCycle == 0) BeginCycle();
  const int64_t cutoff = Cutoff();
  ++round_;
  if (!ChangeSome()) {
    ++placed_;
    return;
  }
  const auto is_no_better = [&](const Score& score) {
    return score.over ? !(score < score_) : score.first > cutoff;
  };
  const uint64_t wishes = HashOfWishes();
  const auto known = known_.find(wishes);
  if (known != known_.end() && is_no_better(known->second)) {
    ++placed_;
    ++known_in_cycle_;
    return;
  }
  const bool legal = Try(cutoff);
  known_[wishes] = legal ? tried_score_ : Score();
  if (!legal || is_no_better(tried_score_)) return;
  known_[wishes] = Score();  // what was reached once leads nowhere new
  at_ = *tried_;
  score_ = tried_score_;
  if (!(score_ < best_score_)) return;
  best_ = at_;
  best_score_ = score_;
  stale_ = 0;
}

// Waits that no order decides left out.
uint64_t OrderSearch::HashOfWishes() const {
  uint64_t hash = 0;
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  };
  for (const Action& action : candidate_.order) {
    const auto kind = static_cast<uint64_t>(action.kind);
    if (action.kind == Action::Kind::kRun) {
      mix(kind << 32 | static_cast<uint64_t>(action.id));
      continue;
    }
    const Batch& batch = candidate_.batches[Index(action.id)];
    if (action.kind == Action::Kind::kWait) {
      if (replay_.HasPlace(batch)) mix(kind << 32 | static_cast<uint64_t>(batch.members[0]));
      continue;
    }
    mix(kind << 32 | static_cast<uint64_t>(batch.form));
    for (const CollectiveId c : batch.members) mix(static_cast<uint64_t>(c));
  }
  return hash;
}

bool OrderSearch::Change() {
  const size_t what = Below(kAll);
  if (what < kEase) return EaseStall();
  if (what < kMove || at_.batches.empty()) return MoveAction();
  if (what < kForm) return ChangeForm();
  if (what < kSplit) return SplitBatch();
  if (what < kMerge) return MergeBatches();
  return MoveMember();
}

size_t OrderSearch::PlaceOf(Action::Kind kind, int32_t id) const {
  size_t place = 0;
  while (place < candidate_.order.size() &&
         (candidate_.order[place].kind != kind || candidate_.order[place].id != id)) {
    ++place;
  }
  return place;
}

// Where the step stands in a wait: what is waited for goes earlier, what its wire carries before
// goes later, or something else fills the time.
bool OrderSearch::EaseStall() {
  const std::vector<Action>& order = candidate_.order;
  const size_t size = order.size();
  const size_t wait = FirstFrom(size == 0 ? 0 : Below(size), size, [&](size_t i) {
    return order[i].kind == Action::Kind::kWait && candidate_.batches[Index(order[i].id)].stalled;
  });
  if (wait == size) return false;
  const size_t launch = PlaceOf(Action::Kind::kLaunch, order[wait].id);
  if (launch >= wait) return false;
  const size_t what = Below(3);
  if (what == 0) {
    if (launch == 0) return false;
    const size_t reach = std::min(launch, size_t{1} << (1 + Below(9)));
    MoveTo(launch, launch - 1 - Below(reach), false);
    return true;
  }
  if (what == 1) {
    const auto group = [&](size_t i) {
      return problem_.transfer(candidate_.batches[Index(order[i].id)].members[0]).group;
    };
    for (size_t before = launch; before-- > 0;) {
      if (order[before].kind != Action::Kind::kLaunch || group(before) != group(launch)) continue;
      if (Below(3) == 0) continue;
      MoveTo(before, launch, Below(2) == 0);
      return true;
    }
    return false;
  }
  size_t filler = wait + 1 + Below(size_t{1} << (1 + Below(8)));
  while (filler < size && (order[filler].kind != Action::Kind::kRun ||
                           problem_.cost[Index(order[filler].id)] == 0)) {
    ++filler;
  }
  if (filler >= size) return false;
  MoveTo(filler, wait, false);
  return true;
}

bool OrderSearch::MoveAction() {
  const size_t size = candidate_.order.size();
  if (size < 2) return false;
  const size_t first = Below(size);
  // Launches decide more than kernels.
  const bool launch = Below(2) == 0;
  const size_t from = FirstFrom(first, size, [&](size_t i) {
    const Action& action = candidate_.order[i];
    if (launch || action.kind == Action::Kind::kLaunch) {
      return launch && action.kind == Action::Kind::kLaunch;
    }
    return action.kind == Action::Kind::kRun
               ? problem_.cost[Index(action.id)] > 0
               : replay_.HasPlace(candidate_.batches[Index(action.id)]);
  });
  if (from == size) return false;
  size_t to = Below(size);
  if (Below(2) == 0) {
    const size_t reach = size_t{1} << (1 + Below(5));
    const size_t low = from > reach ? from - reach : 0;
    to = std::min(size - 1, low + Below(2 * reach + 1));
  }
  if (to == from) return false;
  MoveTo(from, to, to > from && Below(2) == 0);
  return true;
}

bool OrderSearch::DependsOnMarked(const Action& action) const {
  const auto any = [&](LeaderId l) {
    for (const LeaderId x : problem_.before.of(l)) {
      if (marked_[Index(x)]) return true;
    }
    return false;
  };
  if (action.kind == Action::Kind::kRun) return any(action.id);
  for (const CollectiveId c : candidate_.batches[Index(action.id)].members) {
    const Transfer& t = problem_.transfer(c);
    if (any(action.kind == Action::Kind::kLaunch ? t.start : t.wait)) return true;
  }
  return false;
}

// The action stands behind (later) or before (earlier) what stands at `to` now. With what depends
// on it and stands in between, in its order.
void OrderSearch::MoveTo(size_t from, size_t to, bool with_dependents) {
  std::vector<Action>& order = candidate_.order;
  const auto at = [&](size_t i) { return order.begin() + static_cast<int64_t>(i); };
  if (to < from) {
    std::rotate(at(to), at(from), at(from + 1));
    return;
  }
  if (!with_dependents) {
    std::rotate(at(from), at(from + 1), at(to + 1));
    return;
  }
  std::vector<LeaderId> marks;
  const auto mark = [&](const Action& action) {
    const auto add = [&](LeaderId l) {
      if (l < 0) return;
      marked_[Index(l)] = 1;
      marks.push_back(l);
    };
    if (action.kind == Action::Kind::kRun) {
      add(action.id);
      return;
    }
    for (const CollectiveId c : candidate_.batches[Index(action.id)].members) {
      const Transfer& t = problem_.transfer(c);
      if (action.kind == Action::Kind::kLaunch) add(t.start);
      add(t.wait);  // may stand nowhere
    }
  };
  std::vector<Action> moved = {order[from]};
  mark(order[from]);
  size_t kept = from;
  for (size_t i = from + 1; i <= to; ++i) {
    if (DependsOnMarked(order[i])) {
      mark(order[i]);
      moved.push_back(order[i]);
    } else {
      order[kept++] = order[i];
    }
  }
  for (const Action& action : moved) order[kept++] = action;
  for (const LeaderId l : marks) marked_[Index(l)] = 0;
}

bool OrderSearch::MayShare(int32_t a, int32_t b) const {
  const int32_t of_a = class_of_[Index(candidate_.batches[Index(a)].members[0])];
  return a != b && of_a >= 0 && of_a == class_of_[Index(candidate_.batches[Index(b)].members[0])];
}

// A form that several members may have; one alone has none.
void OrderSearch::FixForm(int32_t id) {
  Batch& batch = candidate_.batches[Index(id)];
  SortByPayload(problem_, batch.members);
  if (batch.members.size() == 1) {
    batch.form = Form::kFree;
    return;
  }
  if (batch.form == Form::kFree) batch.form = static_cast<Form>(1 + Below(3));
  if (!MayPack(problem_, batch.members)) batch.form = Form::kGrouped;
}

// The last batch takes the erased one's number.
void OrderSearch::Erase(int32_t id) {
  const auto last = static_cast<int32_t>(candidate_.batches.size()) - 1;
  std::vector<Action>& order = candidate_.order;
  order.erase(
      std::remove_if(order.begin(), order.end(),
                     [&](const Action& a) { return a.kind != Action::Kind::kRun && a.id == id; }),
      order.end());
  for (Action& a : order) {
    if (a.kind != Action::Kind::kRun && a.id == last) a.id = id;
  }
  candidate_.batches[Index(id)] = std::move(candidate_.batches.back());
  candidate_.batches.pop_back();
}

// A batch for which `fits` holds: the first from a random one on. -1: there is none.
template <typename F>
int32_t OrderSearch::Pick(F fits) {
  const size_t size = candidate_.batches.size();
  const size_t batch =
      FirstFrom(Below(size), size, [&](size_t b) { return fits(static_cast<int32_t>(b)); });
  return batch == size ? -1 : static_cast<int32_t>(batch);
}

int32_t OrderSearch::PickBucket() {
  return Pick([&](int32_t b) { return candidate_.batches[Index(b)].members.size() > 1; });
}

int32_t OrderSearch::PickPartner(int32_t of) {
  return Pick([&](int32_t b) { return MayShare(of, b); });
}

bool OrderSearch::MergeBatches() {
  const auto a = static_cast<int32_t>(Below(candidate_.batches.size()));
  const int32_t b = PickPartner(a);
  if (b < 0) return false;
  // At the place of one of them: a's.
  std::vector<CollectiveId>& into = candidate_.batches[Index(a)].members;
  const std::vector<CollectiveId>& more = candidate_.batches[Index(b)].members;
  into.insert(into.end(), more.begin(), more.end());
  FixForm(a);
  Erase(b);
  return true;
}

bool OrderSearch::SplitBatch() {
  const int32_t a = PickBucket();
  if (a < 0) return false;
  std::vector<CollectiveId>& members = candidate_.batches[Index(a)].members;
  std::sort(members.begin(), members.end());
  const size_t at = 1 + Below(members.size() - 1);
  Batch other;
  other.members.assign(members.begin() + static_cast<int64_t>(at), members.end());
  other.form = candidate_.batches[Index(a)].form;
  members.resize(at);
  const auto b = static_cast<int32_t>(candidate_.batches.size());
  candidate_.batches.push_back(std::move(other));
  FixForm(a);
  FixForm(b);
  std::vector<Action>& order = candidate_.order;
  const size_t launch = PlaceOf(Action::Kind::kLaunch, a);
  const size_t wait = PlaceOf(Action::Kind::kWait, a);
  if (wait < order.size()) {
    order.insert(order.begin() + static_cast<int64_t>(wait) + 1, {Action::Kind::kWait, b});
  }
  // Beside the other, or anywhere: two that stand side by side are seldom better than one.
  const size_t at_once = launch + Below(2);
  const auto place = static_cast<int64_t>(Below(2) == 0 ? at_once : Below(order.size() + 1));
  order.insert(order.begin() + place, {Action::Kind::kLaunch, b});
  return true;
}

bool OrderSearch::MoveMember() {
  const int32_t a = PickBucket();
  if (a < 0) return false;
  const int32_t b = PickPartner(a);
  if (b < 0) return false;
  std::vector<CollectiveId>& members = candidate_.batches[Index(a)].members;
  const size_t which = Below(members.size());
  candidate_.batches[Index(b)].members.push_back(members[which]);
  members.erase(members.begin() + static_cast<int64_t>(which));
  FixForm(a);
  FixForm(b);
  return true;
}

bool OrderSearch::ChangeForm() {
  const int32_t a = PickBucket();
  if (a < 0) return false;
  Batch& batch = candidate_.batches[Index(a)];
  const Form before = batch.form;
  batch.form = static_cast<Form>(1 + Below(3));
  FixForm(a);
  return batch.form != before;
}

}  // namespace bucketd::search
