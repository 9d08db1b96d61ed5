#include "passes/cost/costs.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/base/collectives.h"
#include "passes/base/index.h"
#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

// Longest step that is planned: two and a half days. With a slowdown of at most ten and every copy
// and launch counted, no sum in the simulator leaves an int64.
constexpr double kMaxTotalPs = 2.2e17;

// Plans by a file's own costs do not pass for plans by the profile's.
constexpr char kOverTheFiles[] = " over the file's costs";

// Clamped, so that an absurd figure stays one until CheckTotal() refuses it; so does one that is
// none, as of no bytes at no speed.
int64_t ToPs(double us) {
  const double ps = us * 1e6;
  return static_cast<int64_t>(ps < kMaxTotalPs ? std::nearbyint(ps) : kMaxTotalPs);
}

int64_t ToPpb(double share) { return static_cast<int64_t>(std::nearbyint(share * 1e9)); }

bool RunsNothing(NodeKind kind) {
  return kind == NodeKind::kPlaceholder || kind == NodeKind::kGetAttr || kind == NodeKind::kOutput;
}

absl::Status CheckFigure(const Graph& graph, NodeId n, absl::string_view what, double value,
                         bool may_be_zero) {
  if (std::isfinite(value) && (value > 0.0 || (may_be_zero && value == 0.0))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s is %g, expected a finite number %s zero", graph.Describe(n), what,
                      value, may_be_zero ? "not below" : "above"));
}

}  // namespace

double WireFactor(CollectiveKind kind, int32_t group_size) {
  const CollectiveTraits& traits = TraitsOf(kind);
  const double n = group_size;
  const double times = traits.keeps_nothing ? n / std::max(n - 1.0, 1.0) : 1.0;
  return traits.rounds * times * (n - 1.0) / n;
}

absl::Status Costs::SetProfile(const CostProfile& profile) {
  RETURN_IF_ERROR(profile.Validate());
  gamma_ps_ = ToPs(profile.gamma_us);
  host_ps_per_kernel_ = ToPs(profile.host_us_per_kernel);
  host_ps_per_collective_ = ToPs(profile.host_us_per_collective);
  overlap_slowdown_ppb_ = ToPpb(profile.overlap_slowdown);
  comm_copy_share_ppb_ = ToPpb(profile.comm_copy_share);
  hbm_bytes_per_s_ = profile.hbm_bytes_per_s;
  copy_launch_us_ = profile.copy_launch_us;
  profile_id_ = absl::StrCat(profile.name, "@", profile.version);
  return absl::OkStatus();
}

int64_t Costs::CollectivePs(CollectiveId c, int64_t bytes, int64_t launches) const {
  const size_t i = Index(c);
  return alpha_ps_[i] + (launches - 1) * gamma_ps_ +
         ToPs(wire_us_per_byte_[i] * static_cast<double>(bytes));
}

int64_t Costs::CopyPs(int64_t bytes) const {
  return ToPs(2.0 * static_cast<double>(bytes) / hbm_bytes_per_s_ * 1e6 + copy_launch_us_);
}

absl::StatusOr<Costs> Costs::Resolve(const Graph& graph, const StatedCosts& stated,
                                     const CostProfile& profile) {
  Costs costs;
  RETURN_IF_ERROR(costs.SetProfile(profile));
  for (size_t c = 0; c < graph.collectives().size(); ++c) {
    const Collective& collective = graph.collectives()[c];
    const StatedCosts::Link& link = stated.links[c];
    RETURN_IF_ERROR(CheckFigure(graph, collective.start, "alpha_us", link.alpha_us, true));
    RETURN_IF_ERROR(CheckFigure(graph, collective.start, "busbw", link.busbw_bytes_per_s, false));
    const double alpha_scale = link.measured ? 1.0 : profile.alpha_scale;
    const double busbw_scale = link.measured ? 1.0 : profile.busbw_scale;
    costs.alpha_ps_.push_back(ToPs(link.alpha_us * alpha_scale));
    costs.wire_us_per_byte_.push_back(WireFactor(collective.kind, graph.group(collective).size) /
                                      (link.busbw_bytes_per_s * busbw_scale) * 1e6);
  }
  costs.node_ps_.reserve(Index(graph.size()));
  for (NodeId n = 0; n < graph.size(); ++n) {
    const double us = stated.node_us[Index(n)];
    RETURN_IF_ERROR(CheckFigure(graph, n, "est_us", us, true));
    if (RunsNothing(graph.kind(n)) && us != 0.0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: est_us is %g, but a %s runs nothing; expected 0", graph.Describe(n),
                          us, Name(graph.kind(n))));
    }
    int64_t ps = 0;
    if (graph.kind(n) == NodeKind::kCollective) {
      const CollectiveId c = graph.collective_of(n);
      ps = costs.CollectivePs(c, graph.collective(c).bytes, 1);
    } else if (graph.kind(n) != NodeKind::kWait) {
      const bool measured = !stated.measured_nodes.empty() && stated.measured_nodes[Index(n)];
      ps = ToPs(measured ? us : us * profile.compute_scale);
    }
    costs.node_ps_.push_back(ps);
  }
  RETURN_IF_ERROR(costs.CheckTotal(graph));
  return costs;
}

Costs Costs::WithWires(const Graph& graph, double times) const {
  Costs costs = *this;
  for (size_t i = 0; i < graph.collectives().size(); ++i) {
    const Collective& c = graph.collectives()[i];
    costs.wire_us_per_byte_[i] *= times;
    costs.node_ps_[Index(c.start)] = costs.CollectivePs(static_cast<CollectiveId>(i), c.bytes, 1);
  }
  return costs;
}

absl::Status Costs::CheckTotal(const Graph& graph) const {
  double total = 0.0;
  NodeId costliest = 0;
  for (NodeId n = 0; n < graph.size(); ++n) {
    if (node_ps(n) > node_ps(costliest)) costliest = n;
    total += static_cast<double>(node_ps(n)) + static_cast<double>(host_ps_per_kernel_);
  }
  for (const Collective& c : graph.collectives()) {
    // Whatever buckets it joins: both copies of the whole message, with their launches.
    total += 2.0 * static_cast<double>(CopyPs(c.bytes)) + static_cast<double>(gamma_ps_) +
             static_cast<double>(host_ps_per_collective_ + 2 * host_ps_per_kernel_);
  }
  if (total <= kMaxTotalPs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("one step of this graph would take at least %g s under cost profile %s, most "
                      "of it for %s; expected less than %g s",
                      total * 1e-12, profile_id_, graph.Describe(costliest), kMaxTotalPs * 1e-12));
}

absl::StatusOr<Costs> Costs::FromFile(const Graph& graph, const StatedCosts& stated,
                                      const CostProfile& profile) {
  if (stated.node_us.size() != Index(graph.size()) ||
      stated.links.size() != graph.collectives().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "costs for ", stated.node_us.size(), " nodes and ", stated.links.size(),
        " collectives, but the graph has ", graph.size(), " and ", graph.collectives().size()));
  }
  ASSIGN_OR_RETURN(Costs costs, Resolve(graph, stated, profile));
  costs.profile_id_ += kOverTheFiles;
  return costs;
}

}  // namespace bucketd
