#include "gpu_agent/run/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "passes/base/status_macros.h"
#include "passes/cost/costs.h"

namespace bucketd::agent {
namespace {

// Far enough for whatever a machine may be, and near enough that a profile stays valid.
constexpr double kAnyFactor = 1e6;

// A class has one line, but what runs in place (a packed bucket) may be faster than what does not
// (a grouped one, a lone collective): a ring then need not copy the own part of an all-gather, up
// to a third of its time between two ranks. The line is for a fifth of the former and four fifths
// of the latter: a packed bucket spends half of its time on copies, so that the wire's error counts
// half there, and smaller sizes, at which the two are closer, draw the line to the faster one.
constexpr double kInPlaceShare = 0.2;

// What the single collectives of a kind and dtype take in place and not, by size.
struct PlaceTimes {
  double in_place_ps = 0.0, out_of_place_ps = 0.0;
  // What one that is (not) in place takes, times this, is what the line stands for.
  double Factor(bool in_place) const {
    if (in_place_ps == 0.0 || out_of_place_ps == 0.0) return 1.0;
    const double mean = kInPlaceShare * in_place_ps + (1.0 - kInPlaceShare) * out_of_place_ps;
    return mean / (in_place ? in_place_ps : out_of_place_ps);
  }
};

std::vector<ClassSamples> SamplesOf(const SweepResult& sweep, const CalibrationOf& of) {
  std::map<std::tuple<CollectiveKind, DType, int64_t>, PlaceTimes> places;
  for (const CollectiveRow& row : sweep.collectives) {
    if (row.launches != 1) continue;
    PlaceTimes& at = places[{row.kind, row.dtype, row.bytes}];
    (row.in_place ? at.in_place_ps : at.out_of_place_ps) =
        static_cast<double>(Median(row.picoseconds));
  }
  std::map<LinkClass, std::vector<MeasuredSample>> classes;
  for (const CollectiveRow& row : sweep.collectives) {
    const LinkClass link{row.kind, of.link_class, of.ranks, of.ranks_per_node, row.dtype};
    const double factor = places[{row.kind, row.dtype, row.bytes}].Factor(row.in_place);
    for (const int64_t ps : row.picoseconds) {
      classes[link].push_back(
          {row.bytes, std::llround(static_cast<double>(ps) * factor), row.launches, ""});
    }
  }
  std::vector<ClassSamples> samples;
  for (auto& [link, all] : classes) samples.push_back({link, std::move(all)});
  return samples;
}

struct CopyLine {
  double launch_us = 0.0, us_per_byte = 0.0, error = 0.0;
};

// Through two of the points, with the least sum of relative distances of all: one that half of the
// points cannot bend.
CopyLine FitCopies(const std::vector<std::pair<double, double>>& points) {
  CopyLine best;
  double least = HUGE_VAL;
  for (size_t i = 0; i < points.size(); ++i) {
    for (size_t j = i + 1; j < points.size(); ++j) {
      CopyLine line;
      line.us_per_byte =
          (points[j].second - points[i].second) / (points[j].first - points[i].first);
      line.launch_us = std::max(points[i].second - line.us_per_byte * points[i].first, 0.0);
      if (!(line.us_per_byte > 0.0)) continue;
      std::vector<double> errors;
      double sum = 0.0;
      for (const auto& [bytes, us] : points) {
        errors.push_back(std::abs((line.launch_us + line.us_per_byte * bytes) / us - 1.0));
        sum += errors.back();
      }
      if (sum >= least) continue;
      least = sum;
      std::sort(errors.begin(), errors.end());
      line.error = errors[(errors.size() - 1) / 2];
      best = line;
    }
  }
  return best;
}

double Rounded(double value) {
  double result = value;
  if (!absl::SimpleAtod(absl::StrFormat("%.6g", value), &result)) return value;
  return result;
}

std::string Side(const CollectiveRow* row, int ranks) {
  if (row == nullptr) return absl::StrFormat("%9s %7s %7s %7s", "N/A", "N/A", "N/A", "N/A");
  const double us = Us(Median(row->picoseconds));
  const double algbw = static_cast<double>(row->bytes) / us * 1e-3;
  return absl::StrFormat("%9.1f %7.2f %7.2f %7d", us, algbw, algbw * WireFactor(row->kind, ranks),
                         row->wrong);
}

}  // namespace

absl::StatusOr<Calibration> Calibrate(const SweepResult& sweep, const CalibrationOf& of,
                                      const CostProfile& base) {
  for (const CollectiveRow& row : sweep.collectives) {
    if (row.wrong == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(Name(row.kind), " of ", row.bytes,
                                                      " bytes of ", Name(row.dtype), ": ",
                                                      row.wrong, " elements are wrong"));
  }
  FitOptions options;
  options.min_samples = 1;
  options.quorum = 1;
  options.quorum_factor = kAnyFactor;
  options.min_move = 0.0;
  ProfileFit fit = FitProfile(base, SamplesOf(sweep, of), options);
  Calibration calibration{std::move(fit.profile), std::move(fit.classes), 0.0};
  CostProfile& profile = calibration.profile;
  profile.name = of.name;
  profile.version = 1;
  profile.about = of.about;
  std::vector<int64_t> host;
  for (const CollectiveRow& row : sweep.collectives) host.push_back(row.host_ps);
  if (!host.empty()) profile.host_us_per_collective = Rounded(Us(Median(std::move(host))));
  std::vector<std::pair<double, double>> copies;
  for (const CopyRow& row : sweep.copies) {
    if (row.what != "copy") continue;
    copies.emplace_back(static_cast<double>(row.moved), Us(Median(row.picoseconds)));
  }
  const CopyLine line = FitCopies(copies);
  if (line.us_per_byte > 0.0) {
    profile.copy_launch_us = Rounded(line.launch_us);
    profile.hbm_bytes_per_s = Rounded(1e6 / line.us_per_byte);
    calibration.copy_error = line.error;
  }
  RETURN_IF_ERROR(profile.Validate());
  return calibration;
}

std::string TableTitle(const CollectiveRow& row, const std::string& communicator) {
  const std::string group =
      row.launches == 1 ? "" : absl::StrCat(", ", row.launches, " in one launch");
  return absl::StrFormat(
      "# %s%s: %s\n"
      "#%48s %33s  %33s\n"
      "#%11s %11s %8s %8s %6s  %9s %7s %7s %7s  %9s %7s %7s %7s\n"
      "#%11s %11s %8s %8s %6s  %9s %7s %7s %7s  %9s %7s %7s %7s\n",
      Name(row.kind), group, communicator, "", "out-of-place", "in-place", "size", "count", "type",
      "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong",
      "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)",
      "");
}

std::string TableLine(const CollectiveRow& out_of_place, const CollectiveRow* in_place, int ranks) {
  return absl::StrFormat(" %11d %11d %8s %8s %6d  %s  %s\n", out_of_place.bytes, out_of_place.count,
                         Name(out_of_place.dtype), Name(out_of_place.op), -1,
                         Side(&out_of_place, ranks), Side(in_place, ranks));
}

std::string CopyTable(const SweepResult& sweep) {
  std::string text =
      absl::StrFormat("# copies of 8 tensors, all ranks at once\n#%11s %14s %9s %9s\n", "read (B)",
                      "copy", "time (us)", "(GB/s)");
  for (const CopyRow& row : sweep.copies) {
    const double us = Us(Median(row.picoseconds));
    absl::StrAppendFormat(&text, " %11d %14s %9.1f %9.2f\n", row.bytes, row.what, us,
                          static_cast<double>(row.moved) / us * 1e-3);
  }
  return text;
}

std::string FitTable(const Calibration& calibration) {
  std::string text = "# fitted\n";
  for (const ClassFit& fit : calibration.classes) {
    double error = 0.0;
    for (const MeasuredLink& link : calibration.profile.links) {
      if (link.of == fit.of) error = link.error;
    }
    absl::StrAppendFormat(
        &text, "# %s: %.1f us + %.3f GB/s busbw, half of the sizes within %.1f %%\n",
        Describe(fit.of), fit.after.alpha_us, fit.after.busbw_bytes_per_s * 1e-9, error * 100.0);
  }
  const CostProfile& p = calibration.profile;
  absl::StrAppendFormat(&text,
                        "# copies: %.1f us + %.2f GB/s read and written, within %.1f %%\n"
                        "# a further member of a grouped launch: %.1f us; launching: %.1f us\n",
                        p.copy_launch_us, p.hbm_bytes_per_s * 1e-9, calibration.copy_error * 100.0,
                        p.gamma_us, p.host_us_per_collective);
  return text;
}

}  // namespace bucketd::agent
