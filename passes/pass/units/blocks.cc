#include "passes/pass/units/blocks.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "passes/base/index.h"
#include "passes/pass/entries.h"

namespace bucketd {
namespace {

constexpr size_t kMaxNamed = 8;  // modules in the name of a unit

// A component that is a number, at `begin` of the FQN.
struct NumberAt {
  absl::string_view prefix;  // what stands before it, without the dot
  int32_t number = 0;
};

std::vector<NumberAt> NumbersIn(absl::string_view fqn) {
  std::vector<NumberAt> numbers;
  for (size_t begin = 0; begin < fqn.size();) {
    const size_t end = std::min(fqn.find('.', begin), fqn.size());
    NumberAt at;
    if (ParseNumber(fqn.substr(begin, end - begin), at.number)) {
      at.prefix = fqn.substr(0, begin == 0 ? 0 : begin - 1);
      numbers.push_back(at);
    }
    begin = end + 1;
  }
  return numbers;
}

// The children of one prefix by number: the uses below P.<integer>.
using Children = std::map<int32_t, std::vector<int32_t>>;

// Children by the prefix of their `depth`-th number, of those uses that are not in a block yet:
// what is nested in a block never makes a row of its own.
std::map<absl::string_view, Children> ChildrenAtDepth(absl::Span<const LabelUse> uses, size_t depth,
                                                      const std::vector<bool>& taken) {
  std::map<absl::string_view, Children> rows;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (taken[i]) continue;
    const std::vector<NumberAt> numbers = NumbersIn(uses[i].label);
    if (numbers.size() <= depth) continue;
    rows[numbers[depth].prefix][numbers[depth].number].push_back(static_cast<int32_t>(i));
  }
  return rows;
}

// Names of one child in an order of their own, so that the order of use does not tell children
// apart.
std::string SortedNames(absl::Span<const LabelUse> uses, absl::Span<const int32_t> child,
                        size_t child_length) {
  std::vector<absl::string_view> names;
  for (const int32_t use : child) names.push_back(uses[Index(use)].label.substr(child_length));
  std::sort(names.begin(), names.end());
  return absl::StrJoin(names, "\n");
}

bool IsRow(absl::Span<const LabelUse> uses, absl::string_view prefix, const Children& row) {
  std::set<std::string> classes;
  for (const auto& [number, child] : row) {
    const absl::string_view fqn = uses[Index(child[0])].label;
    const size_t begin = prefix.empty() ? 0 : prefix.size() + 1;
    const size_t length = std::min(fqn.find('.', begin), fqn.size());
    classes.insert(SortedNames(uses, child, length));
    if (classes.size() > 2) return false;
  }
  return true;
}

struct Row {
  int64_t first_use = std::numeric_limits<int64_t>::max();
  std::vector<FoundUnit> blocks;
};

// All rows of two or more children, or, if `lone`, of one. Outermost first; rows in order of first
// use, blocks in numeric order.
std::vector<Row> FindRows(absl::Span<const LabelUse> uses, bool lone, std::vector<bool>& taken) {
  constexpr size_t kMaxDepth = 8;
  std::vector<Row> rows;
  for (size_t depth = 0; depth < kMaxDepth; ++depth) {
    std::vector<int32_t> now;
    for (const auto& [prefix, children] : ChildrenAtDepth(uses, depth, taken)) {
      if ((children.size() < 2) != lone || !IsRow(uses, prefix, children)) continue;
      Row& row = rows.emplace_back();
      for (const auto& [number, child] : children) {
        row.blocks.push_back(
            {absl::StrCat(prefix, prefix.empty() ? "" : ".", number), child, lone});
        for (const int32_t use : child) {
          row.first_use = std::min(row.first_use, uses[Index(use)].first_use);
          now.push_back(use);
        }
      }
    }
    for (const int32_t use : now) taken[Index(use)] = true;
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.first_use < b.first_use; });
  return rows;
}

absl::string_view Owner(absl::string_view fqn) {
  const size_t dot = fqn.rfind('.');
  return dot == absl::string_view::npos ? fqn : fqn.substr(0, dot);
}

absl::string_view Top(absl::string_view name) { return name.substr(0, name.find('.')); }

// Uses outside of blocks, in order of first use, into units.
class Outside {
 public:
  Outside(absl::Span<const LabelUse> uses, const std::vector<Row>& rows) : uses_(uses) {
    for (const Row& row : rows) with_blocks_.insert(Top(row.blocks[0].name));
  }

  // One unit a top-level module; what the model itself owns is one, too.
  void AddByModule(const std::vector<int32_t>& outside, std::vector<FoundUnit>& units) const {
    std::map<absl::string_view, size_t> unit_of;
    for (const int32_t use : outside) {
      const absl::string_view fqn = Fqn(use);
      const bool own = fqn.find('.') == absl::string_view::npos;
      const auto [it, added] = unit_of.emplace(own ? absl::string_view() : Name(fqn), units.size());
      if (added) units.push_back({std::string(Name(fqn)), {}, false});
      FoundUnit& unit = units[it->second];
      unit.uses.push_back(use);
      if (!own || added || unit.uses.size() > kMaxNamed + 1) continue;
      absl::StrAppend(&unit.name, "+", unit.uses.size() > kMaxNamed ? "..." : fqn);
    }
  }

  void AddAsOne(const std::vector<int32_t>& outside, std::vector<FoundUnit>& units) const {
    if (outside.empty()) return;
    FoundUnit unit{"", outside, false};
    std::set<absl::string_view> names;
    for (const int32_t use : outside) {
      const absl::string_view name = Name(Fqn(use));
      if (!names.insert(name).second || names.size() > kMaxNamed) continue;
      absl::StrAppend(&unit.name, unit.name.empty() ? "" : "+", name);
    }
    if (names.size() > kMaxNamed) absl::StrAppend(&unit.name, "+...");
    units.push_back(std::move(unit));
  }

 private:
  absl::string_view Fqn(int32_t use) const { return uses_[Index(use)].label; }
  // Its top-level module, unless blocks live in there.
  absl::string_view Name(absl::string_view fqn) const {
    const absl::string_view top = Top(fqn);
    return with_blocks_.contains(top) ? Owner(fqn) : top;
  }

  absl::Span<const LabelUse> uses_;
  absl::flat_hash_set<absl::string_view> with_blocks_;  // top-level modules
};

}  // namespace

absl::StatusOr<std::vector<FoundUnit>> FindBlocks(absl::Span<const LabelUse> uses) {
  std::vector<bool> taken(uses.size());
  std::vector<Row> rows = FindRows(uses, false, taken);
  if (rows.empty()) rows = FindRows(uses, true, taken);
  if (rows.empty()) {
    return absl::FailedPreconditionError(
        "no transformer blocks found: no module has numbered children with like "
        "parameters (layers.0, layers.1, ...); name the modules yourself with mode manual, for "
        "example --mode manual --buckets stem,body.conv1+body.conv2,head");
  }
  const auto by_use = [&](int32_t a, int32_t b) {
    return std::make_pair(uses[Index(a)].first_use, a) <
           std::make_pair(uses[Index(b)].first_use, b);
  };
  std::vector<int32_t> outside;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (!taken[i]) outside.push_back(static_cast<int32_t>(i));
  }
  std::sort(outside.begin(), outside.end(), by_use);
  const Outside splitter(uses, rows);
  std::vector<FoundUnit> units;
  auto next = outside.begin();
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto end = std::find_if(next, outside.end(), [&](int32_t use) {
      return uses[Index(use)].first_use >= rows[r].first_use;
    });
    if (r == 0) {
      splitter.AddByModule({next, end}, units);
    } else {
      splitter.AddAsOne({next, end}, units);
    }
    next = end;
    units.insert(units.end(), rows[r].blocks.begin(), rows[r].blocks.end());
  }
  splitter.AddAsOne({next, outside.end()}, units);
  return units;
}

}  // namespace bucketd
