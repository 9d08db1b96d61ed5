#include "passes/pass/stable_sort.h"

#include <algorithm>
#include <utility>

#include "passes/base/csr.h"
#include "passes/base/index.h"

namespace bucketd {
namespace {

// Dependencies of every id, each once: all[begin[id]] to all[end[id] - 1].
struct Dependencies {
  std::vector<int32_t> begin, end;
  std::vector<int32_t> all;
};

Dependencies Collect(absl::Span<const int32_t> list, int32_t id_count,
                     absl::FunctionRef<absl::Span<const int32_t>(int32_t)> before,
                     absl::Span<const ExtraDep> extra) {
  const size_t ids = Index(id_count);
  const Csr more = MakeCsr(id_count, [&](auto add) {
    for (const ExtraDep& dep : extra) add(dep.after, dep.before);
  });

  Dependencies deps;
  deps.begin.resize(ids);
  deps.end.resize(ids);
  std::vector<int32_t> seen_by(ids, -1);
  for (const int32_t id : list) {
    const auto add = [&](int32_t dep) {
      if (std::exchange(seen_by[Index(dep)], id) != id) deps.all.push_back(dep);
    };
    deps.begin[Index(id)] = static_cast<int32_t>(deps.all.size());
    for (const int32_t dep : before(id)) add(dep);
    for (const int32_t dep : more.of(id)) add(dep);
    deps.end[Index(id)] = static_cast<int32_t>(deps.all.size());
  }
  return deps;
}

class Sort {
 public:
  Sort(Dependencies deps, int32_t id_count)
      : deps_(std::move(deps)),
        placed_(Index(id_count), false),
        first_parked_(Index(id_count), -1),
        last_parked_(Index(id_count), -1),
        next_parked_(Index(id_count), -1) {}

  void Take(int32_t id) {
    stack_.push_back(id);
    while (!stack_.empty()) {
      const int32_t now = stack_.back();
      stack_.pop_back();
      const int32_t missing = LastMissing(now);
      if (missing < 0) {
        Place(now);
      } else {
        Park(now, missing);
      }
    }
  }

  std::vector<int32_t> order;

 private:
  // What is placed stays so: the end of a list that was placed once is never looked at again.
  int32_t LastMissing(int32_t id) {
    int32_t& end = deps_.end[Index(id)];
    for (; end > deps_.begin[Index(id)]; --end) {
      const int32_t dep = deps_.all[Index(end - 1)];
      if (!placed_[Index(dep)]) return dep;
    }
    return -1;
  }

  void Park(int32_t id, int32_t missing) {
    if (first_parked_[Index(missing)] < 0) {
      first_parked_[Index(missing)] = id;
    } else {
      next_parked_[Index(last_parked_[Index(missing)])] = id;
    }
    last_parked_[Index(missing)] = id;
  }

  void Place(int32_t id) {
    placed_[Index(id)] = true;
    order.push_back(id);
    const size_t from = stack_.size();
    for (int32_t parked = first_parked_[Index(id)]; parked >= 0;) {
      stack_.push_back(parked);
      parked = std::exchange(next_parked_[Index(parked)], -1);
    }
    std::reverse(stack_.begin() + static_cast<std::ptrdiff_t>(from), stack_.end());
  }

  Dependencies deps_;
  std::vector<bool> placed_;
  std::vector<int32_t> first_parked_, last_parked_, next_parked_;
  std::vector<int32_t> stack_;
};

}  // namespace

std::optional<std::vector<int32_t>> StableTopologicalSort(
    absl::Span<const int32_t> list, int32_t id_count,
    absl::FunctionRef<absl::Span<const int32_t>(int32_t)> before, absl::Span<const ExtraDep> extra,
    int32_t last) {
  Sort sort(Collect(list, id_count, before, extra), id_count);
  sort.order.reserve(list.size());
  for (const int32_t id : list) {
    if (id != last) sort.Take(id);
  }
  if (last >= 0) sort.Take(last);
  if (sort.order.size() != list.size()) return std::nullopt;
  return std::move(sort.order);
}

std::optional<std::vector<int32_t>> StableTopologicalSort(absl::Span<const int32_t> list,
                                                          const ItemGraph& items,
                                                          absl::Span<const ExtraDep> extra) {
  return StableTopologicalSort(
      list, items.size(), [&](int32_t item) { return items.before(item); }, extra, items.output());
}

}  // namespace bucketd
