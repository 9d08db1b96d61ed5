#include "passes/pass/stable_sort.h"

#include <utility>

#include "passes/base/csr.h"
#include "passes/base/index.h"

namespace bucketd {
namespace {

// Of every id, each once.
Csr Dependencies(int32_t id_count, absl::FunctionRef<absl::Span<const int32_t>(int32_t)> before,
                 absl::Span<const ExtraDep> extra) {
  const Csr more = MakeCsr(id_count, [&](auto add) {
    for (const ExtraDep& dep : extra) add(dep.after, dep.before);
  });
  Csr deps;
  std::vector<int32_t> seen_by(Index(id_count), -1);
  for (int32_t id = 0; id < id_count; ++id) {
    for (const absl::Span<const int32_t> list : {before(id), more.of(id)}) {
      for (const int32_t dep : list) {
        if (std::exchange(seen_by[Index(dep)], id) != id) deps.all.push_back(dep);
      }
    }
    deps.Close();
  }
  return deps;
}

class Sort {
 public:
  explicit Sort(Csr deps)
      : deps_(std::move(deps)), placed_(Index(deps_.size()), false), parked_(Index(deps_.size())) {
    for (int32_t id = 0; id < deps_.size(); ++id) left_.push_back(deps_.of(id).size());
  }

  void Take(int32_t id) {
    stack_.push_back(id);
    while (!stack_.empty()) {
      const int32_t now = stack_.back();
      stack_.pop_back();
      const int32_t missing = LastMissing(now);
      if (missing >= 0) {
        parked_[Index(missing)].push_back(now);
        continue;
      }
      placed_[Index(now)] = true;
      order.push_back(now);
      const std::vector<int32_t>& parked = parked_[Index(now)];
      stack_.insert(stack_.end(), parked.rbegin(), parked.rend());
    }
  }

  std::vector<int32_t> order;

 private:
  // What is placed stays so: the end of a list that was placed once is never looked at again.
  int32_t LastMissing(int32_t id) {
    const absl::Span<const int32_t> deps = deps_.of(id);
    for (size_t& left = left_[Index(id)]; left > 0; --left) {
      if (!placed_[Index(deps[left - 1])]) return deps[left - 1];
    }
    return -1;
  }

  const Csr deps_;
  std::vector<size_t> left_;
  std::vector<bool> placed_;
  std::vector<std::vector<int32_t>> parked_;  // until this one is placed
  std::vector<int32_t> stack_;
};

}  // namespace

std::optional<std::vector<int32_t>> StableTopologicalSort(
    absl::Span<const int32_t> list, int32_t id_count,
    absl::FunctionRef<absl::Span<const int32_t>(int32_t)> before, absl::Span<const ExtraDep> extra,
    int32_t last) {
  Sort sort(Dependencies(id_count, before, extra));
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
