#include "server/costs/cost_proposals.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"
#include "server/base/errors.h"

namespace bucketd {
namespace {

double Share(int64_t ppm) { return static_cast<double>(ppm) * 1e-6; }

std::string About(const ProfileFit& fit, const std::string& base) {
  int32_t moved = 0, samples = 0, reporters = 0;
  for (const ClassFit& of : fit.classes) {
    moved += of.moved ? 1 : 0;
    samples += of.samples;
    reporters = std::max(reporters, of.reporters);
  }
  return absl::StrCat(base, " with ", moved, " of ", fit.classes.size(),
                      " measured classes of links moved, ", samples, " samples of up to ",
                      reporters, " reporters");
}

// Only what many agree on, and all of it, goes out without a person.
bool BeyondDoubt(const ProfileFit& fit) {
  if (fit.gamma_after_us != fit.gamma_before_us && (!fit.gamma_quorum || fit.gamma_clamped)) {
    return false;
  }
  return std::all_of(fit.classes.begin(), fit.classes.end(),
                     [](const ClassFit& of) { return !of.moved || (of.quorum && !of.clamped); });
}

absl::StatusOr<CostProposal> Propose(const std::string& name, CostCatalog& catalog,
                                     CostSamples& samples, const CostOptions& options,
                                     CostMetrics& metrics, const Actor& actor) {
  ASSIGN_OR_RETURN(const CostCatalog::ProfilePtr base,
                   catalog.Resolve(absl::StrCat(name, "@latest"), ""));
  const std::vector<ClassSamples> held = samples.Get(name);
  if (held.empty()) {
    return MakeError(Reason::kNoSamples, absl::StrCat("no samples of cost profile ", name,
                                                      " are held; report some first"));
  }
  CostProposal proposal;
  proposal.fit = FitProfile(*base, held, FitOptionsOf(options));
  if (!proposal.fit.moved) {
    metrics.proposals(ProposalResult::kNothingMoved).Increment();
    return proposal;
  }
  CostProfile candidate = proposal.fit.profile;
  candidate.about = About(proposal.fit, ProfileId(*base));
  ASSIGN_OR_RETURN(const CostCatalog::Added added,
                   catalog.Add(std::move(candidate), ProfileOrigin::kMeasured, "measured", actor));
  proposal.version = added.info;
  metrics
      .proposals(added.already_there ? ProposalResult::kAlreadyThere : ProposalResult::kNewVersion)
      .Increment();
  if (options.auto_promote && BeyondDoubt(proposal.fit)) {
    ASSIGN_OR_RETURN(const CostCatalog::Switched switched,
                     catalog.Promote(name, added.info.version, PromotionKind::kAutomatic, actor));
    proposal.version = switched.info;
    proposal.promoted = true;
  }
  return proposal;
}

}  // namespace

FitOptions FitOptionsOf(const CostOptions& options) {
  FitOptions fit;
  fit.min_samples = options.min_samples;
  fit.quorum = options.quorum;
  fit.alone_factor = 1.0 + Share(options.move_ppm);
  fit.quorum_factor = 1.0 + Share(options.quorum_move_ppm);
  return fit;
}

absl::StatusOr<CostProposal> ProposeProfile(const std::string& name, CostCatalog& catalog,
                                            CostSamples& samples, const CostOptions& options,
                                            CostMetrics& metrics, const Actor& actor) {
  absl::StatusOr<CostProposal> proposal = Propose(name, catalog, samples, options, metrics, actor);
  if (!proposal.ok()) metrics.proposals(ProposalResult::kError).Increment();
  return proposal;
}

}  // namespace bucketd
