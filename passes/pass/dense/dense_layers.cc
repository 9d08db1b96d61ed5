#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"
#include "passes/pass/dense/dense_regions.h"
#include "passes/pass/entries.h"
#include "passes/pass/units/units.h"

namespace bucketd {
namespace {

bool IsNumber(absl::string_view component) {
  return !component.empty() && std::all_of(component.begin(), component.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
}

absl::string_view Owner(absl::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == absl::string_view::npos ? absl::string_view() : path.substr(0, dot);
}

// Up to the first component that is a number; "" if none is.
absl::string_view LayerIn(absl::string_view path) {
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find('.', at), path.size());
    if (IsNumber(path.substr(at, end - at))) return path.substr(0, end);
    at = end + 1;
  }
  return "";
}

class LayerFinder {
 public:
  explicit LayerFinder(const PassContext& context)
      : context_(context), unit_of_(context.tags.of.size(), -1), uses_(LabelsInOrder(context)) {
    for (size_t u = 0; u < context.units.size(); ++u) {
      for (const CollectiveId c : context.units[u].collectives) {
        unit_of_[Index(c)] = static_cast<int32_t>(u);
      }
    }
    layers_.of_unit.assign(context.units.size(), DenseLayers::kNone);
  }

  absl::StatusOr<DenseLayers> Find() && {
    FindRows();
    RETURN_IF_ERROR(PlaceUnits());
    FindTop();
    FindExperts();
    return std::move(layers_);
  }

 private:
  int32_t UnitOf(const LabelUse& use) const { return unit_of_[Index(use.collectives[0])]; }

  // Rows in order of first use, the layers of each by number.
  void FindRows() {
    std::vector<absl::string_view> parents;
    std::map<absl::string_view, std::set<std::pair<size_t, absl::string_view>>> rows;
    for (const LabelUse& use : uses_) {
      const absl::string_view layer = LayerIn(use.label);
      if (UnitOf(use) < 0 || layer.empty()) continue;
      auto& row = rows[Owner(layer)];
      if (row.empty()) parents.push_back(Owner(layer));
      row.emplace(layer.size(), layer);
    }
    const bool wide = std::any_of(rows.begin(), rows.end(),
                                  [](const auto& row) { return row.second.size() > 1; });
    for (const absl::string_view parent : parents) {
      if (wide && rows[parent].size() < 2) continue;
      for (const auto& [length, layer] : rows[parent]) {
        layer_at_.emplace(layer, layers_.top());
        layers_.names.emplace_back(layer);
        for (absl::string_view at = layer; !at.empty(); at = Owner(at)) outer_.insert(at);
      }
    }
  }

  // -1: in none.
  int32_t LayerOf(absl::string_view path) const {
    const auto it = layer_at_.find(LayerIn(path));
    return it == layer_at_.end() ? -1 : it->second;
  }

  absl::Status PlaceUnits() {
    std::vector<bool> begun(layers_.names.size());
    for (size_t i = 0; i < uses_.size(); ++i) {
      const int32_t unit = UnitOf(uses_[i]);
      const int32_t layer = LayerOf(uses_[i].label);
      if (unit < 0 || layer < 0) continue;
      if (!begun[Index(layer)]) last_layer_begins_ = i;
      begun[Index(layer)] = true;
      int32_t& of_unit = layers_.of_unit[Index(unit)];
      if (of_unit >= 0 && of_unit != layer) {
        return absl::FailedPreconditionError(
            absl::StrCat("entry ", context_.units[Index(unit)].name, " spans ",
                         layers_.names[Index(of_unit)], " and ", layers_.names[Index(layer)],
                         "; with dense_regions an entry may touch one layer only"));
      }
      of_unit = layer;
    }
    return absl::OkStatus();
  }

  // Units outside of layers whose first use comes behind the last layer's.
  void FindTop() {
    absl::flat_hash_set<int32_t> seen;
    absl::flat_hash_set<absl::string_view> modules;
    for (size_t i = 0; i < uses_.size(); ++i) {
      const int32_t unit = UnitOf(uses_[i]);
      if (unit < 0) continue;
      int32_t& of_unit = layers_.of_unit[Index(unit)];
      const bool first = seen.insert(unit).second;
      if (first && of_unit == DenseLayers::kNone && i > last_layer_begins_) {
        of_unit = layers_.top();
      }
      const absl::string_view module = Owner(uses_[i].label);
      if (of_unit != layers_.top() || module.empty() || outer_.contains(module)) continue;
      if (modules.insert(module).second) layers_.on_top.emplace_back(module);
    }
  }

  void FindExperts() {
    using Role = std::pair<absl::string_view, int32_t>;  // of a group
    std::vector<std::map<Role, std::vector<absl::string_view>>> by_role(layers_.names.size());
    for (const LabelUse& use : uses_) {
      const int32_t layer = UnitOf(use) < 0 ? -1 : LayerOf(use.label);
      const auto sharded =
          std::find_if(use.collectives.begin(), use.collectives.end(),
                       [&](auto c) { return !ReducesWhole(context_.graph.collective(c).kind); });
      if (layer < 0 || sharded == use.collectives.end()) continue;
      const Group& group = context_.graph.group(context_.graph.collective(*sharded));
      by_role[Index(layer)][{group.mesh_dim, group.size}].push_back(use.label);
    }
    std::set<std::pair<int32_t, absl::string_view>> found;
    const auto add = [&](int32_t layer, absl::string_view path) {
      const absl::string_view child = ChildOf(layers_.names[Index(layer)], path);
      if (!child.empty()) found.emplace(layer, child);
    };
    for (int32_t layer = 0; layer < layers_.top(); ++layer) {
      const auto& roles = by_role[Index(layer)];
      const auto most = std::max_element(roles.begin(), roles.end(), [](auto& a, auto& b) {
        return a.second.size() < b.second.size();
      });
      for (auto it = roles.begin(); it != roles.end(); ++it) {
        if (it == most) continue;
        for (const absl::string_view label : it->second) add(layer, label);
      }
    }
    for (const Collective& collective : context_.graph.collectives()) {
      if (!Exchanges(collective.kind)) continue;
      const absl::string_view module = context_.graph.module(collective.start);
      const int32_t layer = LayerOf(module);
      if (layer >= 0 && by_role[Index(layer)].size() < 2) add(layer, module);
    }
    for (const auto& [layer, child] : found) layers_.experts.emplace_back(child);
  }

  const PassContext& context_;
  std::vector<int32_t> unit_of_;
  std::vector<LabelUse> uses_;
  absl::flat_hash_set<absl::string_view> outer_;  // modules that are layers or hold some
  absl::flat_hash_map<absl::string_view, int32_t> layer_at_;
  size_t last_layer_begins_ = 0;
  DenseLayers layers_;
};

}  // namespace

absl::string_view ChildOf(absl::string_view layer, absl::string_view path) {
  if (path.size() <= layer.size() || !Holds(layer, path)) return "";
  return path.substr(0, path.find('.', layer.size() + 1));
}

absl::StatusOr<DenseLayers> FindDenseLayers(const PassContext& context) {
  return LayerFinder(context).Find();
}

}  // namespace bucketd
