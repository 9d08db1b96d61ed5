#include "passes/cost/measured_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"

#include "passes/cost/device_model.h"

namespace bucketd {
namespace {

// A MAD of normal noise is its standard deviation over this.
constexpr double kMadToSigma = 1.4826;
// Clocks and rounding: nothing this close to the median is an outlier.
constexpr double kNeverOutlier = 0.05;
// Sizes show the wire if the largest took twice as long as the smallest, and latency if time grew
// by less than half of what the size did.
constexpr double kShows = 2.0;

// The lower of the middle two where their number is even. Sorts `values`.
double Median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

struct Line {
  double alpha_us = 0.0;
  double us_per_byte = 0.0;
  double At(double bytes) const { return alpha_us + us_per_byte * bytes; }
};

struct Point {
  double bytes = 0.0;
  double us = 0.0;
};

int Bin(int64_t bytes) { return 63 - __builtin_clzll(static_cast<uint64_t>(bytes)); }

// Six digits: what a measurement has, and what a person reads.
double Rounded(double value) {
  return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr);
}

double Clamp(double value, double before, double factor, bool& clamped) {
  const double low = before / factor, high = before * factor;
  if (value >= low && value <= high) return value;
  clamped = true;
  return value < low ? low : high;
}

// One reporter's values without those far from their median; how many went is added to `outliers`.
std::vector<double> WithoutOutliers(std::vector<double> values, double mads, int32_t& outliers) {
  const double middle = Median(values);
  std::vector<double> distances;
  for (const double v : values) distances.push_back(std::abs(v - middle));
  const double reach =
      std::max(mads * kMadToSigma * Median(distances), kNeverOutlier * std::abs(middle));
  outliers += static_cast<int32_t>(
      std::erase_if(values, [&](double v) { return std::abs(v - middle) > reach; }));
  return values;
}

// What the reporters of one thing say together.
struct Verdict {
  double value = 0.0;
  int32_t samples = 0, reporters = 0;
};

using ByReporter = std::map<std::string, std::vector<double>>;

Verdict Vote(const ByReporter& values, double mads, int32_t& outliers) {
  Verdict verdict;
  std::vector<double> votes;
  for (const auto& [reporter, all] : values) {
    std::vector<double> kept = WithoutOutliers(all, mads, outliers);
    verdict.samples += static_cast<int32_t>(kept.size());
    votes.push_back(Median(kept));
  }
  verdict.reporters = static_cast<int32_t>(votes.size());
  verdict.value = Median(votes);
  return verdict;
}

double Misfit(const Line& line, const std::vector<Point>& points) {
  double sum = 0.0;
  for (const Point& p : points) sum += std::abs(line.At(p.bytes) / p.us - 1.0);
  return sum;
}

// The best of some lines: a sum of absolute values is least on a line through two of the points, or
// through one where a parameter is given.
class Best {
 public:
  explicit Best(const std::vector<Point>& points) : points_(points) {}
  void Try(const Line& line) {
    if (!(line.alpha_us >= 0.0) || !(line.us_per_byte > 0.0)) return;
    const double misfit = Misfit(line, points_);
    if (misfit < least_) {
      least_ = misfit;
      line_ = line;
    }
  }
  bool found() const { return std::isfinite(least_); }
  const Line& line() const { return line_; }

 private:
  const std::vector<Point>& points_;
  double least_ = std::numeric_limits<double>::infinity();
  Line line_;
};

// Says what the points, which ascend by size, show.
Line FitLine(const std::vector<Point>& points, const Line& before, ClassFit& fit) {
  const Point &first = points.front(), &last = points.back();
  const double time_grew = last.us / first.us, size_grew = last.bytes / first.bytes;
  const bool wire = fit.bandwidth_shown = time_grew >= kShows;
  const bool latency = fit.latency_shown = time_grew * kShows <= size_grew;
  Best best(points);
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& p = points[i];
    if (wire && latency) {
      best.Try({0.0, p.us / p.bytes});
      for (size_t j = i + 1; j < points.size(); ++j) {
        const double slope = (points[j].us - p.us) / (points[j].bytes - p.bytes);
        best.Try({p.us - slope * p.bytes, slope});
      }
    } else if (wire) {
      best.Try({before.alpha_us, (p.us - before.alpha_us) / p.bytes});
    } else if (latency) {
      best.Try({p.us - before.us_per_byte * p.bytes, before.us_per_byte});
    }
    if (!wire || !latency) {
      // One regime, or one size: both parameters in the proportion that they had.
      const double ratio = p.us / before.At(p.bytes);
      best.Try({before.alpha_us * ratio, before.us_per_byte * ratio});
    }
  }
  return best.found() ? best.line() : before;
}

// Of single launches, ascending by size. Empty where there are too few samples; says how many
// count.
std::vector<Point> MakePoints(const ClassSamples& of, const Line& before, const FitOptions& options,
                              ClassFit& fit) {
  struct Sizes {
    ByReporter ratios;
    std::vector<double> bytes;
  };
  std::map<int, Sizes> bins;
  size_t singles = 0;
  for (const MeasuredSample& s : of.samples) {
    if (s.launches != 1) continue;
    const auto bytes = static_cast<double>(s.bytes);
    Sizes& bin = bins[Bin(s.bytes)];
    bin.ratios[s.reporter].push_back(static_cast<double>(s.picoseconds) * 1e-6 / before.At(bytes));
    bin.bytes.push_back(bytes);
    ++singles;
  }
  std::vector<Point> points;
  if (singles < static_cast<size_t>(options.min_samples)) return points;
  const auto quorum = static_cast<size_t>(options.quorum);
  for (const auto& [log2, bin] : bins) fit.quorum |= bin.ratios.size() >= quorum;
  for (auto& [log2, bin] : bins) {
    if (fit.quorum && bin.ratios.size() < quorum) continue;
    const Verdict verdict = Vote(bin.ratios, options.outlier_mads, fit.outliers);
    const double bytes = Median(bin.bytes);
    points.push_back({bytes, verdict.value * before.At(bytes)});
    fit.samples += verdict.samples;
    fit.reporters = std::max(fit.reporters, verdict.reporters);
  }
  return points;
}

double MedianError(const Line& line, const std::vector<Point>& points) {
  std::vector<double> errors;
  for (const Point& p : points) errors.push_back(std::abs(line.At(p.bytes) / p.us - 1.0));
  return Median(errors);
}

bool Moved(double before, double after, double least) {
  return std::abs(after - before) > least * before;
}

class Fitter {
 public:
  Fitter(const CostProfile& base, const FitOptions& options) : base_(base), options_(options) {
    fit_.profile = base;
    for (const MeasuredLink& row : base.links) rows_.emplace(row.of, row);
    fit_.gamma_before_us = fit_.gamma_after_us = base.gamma_us;
  }

  ProfileFit Run(absl::Span<const ClassSamples> classes) {
    for (const ClassSamples& of : classes) {
      const Line line = FitClass(of);
      for (const MeasuredSample& s : of.samples) {
        if (s.launches < 2) continue;
        const double rest_us =
            static_cast<double>(s.picoseconds) * 1e-6 - line.At(static_cast<double>(s.bytes));
        gammas_[s.reporter].push_back(rest_us / (s.launches - 1));
      }
    }
    FitGamma();
    fit_.profile.links.clear();
    for (const auto& [of, row] : rows_) fit_.profile.links.push_back(row);
    return std::move(fit_);
  }

 private:
  // The line that holds for the class from now on.
  Line FitClass(const ClassSamples& of) {
    ClassFit fit;
    fit.of = of.of;
    fit.before = fit.after = LinkUnder(base_, of.of);
    const double factor = WireFactor(of.of.kind, of.of.group_size);
    const Line before{fit.before.alpha_us, factor / fit.before.busbw_bytes_per_s * 1e6};
    const std::vector<Point> points = MakePoints(of, before, options_, fit);
    Line line = before;
    if (!points.empty()) {
      line = FitLine(points, before, fit);
      Take(points, before, factor, fit, line);
    }
    fit_.classes.push_back(fit);
    return line;
  }

  void Take(const std::vector<Point>& points, const Line& before, double wire_factor, ClassFit& fit,
            Line& line) {
    const double reach = fit.quorum ? options_.quorum_factor : options_.alone_factor;
    const double alpha = Clamp(Rounded(line.alpha_us), before.alpha_us, reach, fit.clamped);
    const double busbw = Clamp(Rounded(wire_factor / line.us_per_byte * 1e6),
                               fit.before.busbw_bytes_per_s, reach, fit.clamped);
    fit.moved = Moved(before.alpha_us, alpha, options_.min_move) ||
                Moved(fit.before.busbw_bytes_per_s, busbw, options_.min_move);
    if (!fit.moved) {
      line = before;
      return;
    }
    fit_.moved = true;
    line = {alpha, wire_factor / busbw * 1e6};
    fit.after = {alpha, busbw, true};
    rows_[fit.of] = {fit.of,      alpha,         busbw,
                     fit.samples, fit.reporters, Rounded(std::min(MedianError(line, points), 1e9))};
  }

  void FitGamma() {
    size_t samples = 0;
    for (const auto& [reporter, values] : gammas_) samples += values.size();
    if (samples < static_cast<size_t>(options_.min_samples) || base_.gamma_us <= 0.0) return;
    int32_t outliers = 0;
    const Verdict verdict = Vote(gammas_, options_.outlier_mads, outliers);
    fit_.gamma_quorum = verdict.reporters >= options_.quorum;
    const double reach = fit_.gamma_quorum ? options_.quorum_factor : options_.alone_factor;
    const double gamma = Clamp(Rounded(verdict.value), base_.gamma_us, reach, fit_.gamma_clamped);
    if (!Moved(base_.gamma_us, gamma, options_.min_move)) return;
    fit_.gamma_after_us = fit_.profile.gamma_us = gamma;
    fit_.moved = true;
  }

  const CostProfile& base_;
  const FitOptions& options_;
  ProfileFit fit_;
  std::map<LinkClass, MeasuredLink> rows_;  // of the new profile
  ByReporter gammas_;
};

}  // namespace

ProfileFit FitProfile(const CostProfile& base, absl::Span<const ClassSamples> classes,
                      const FitOptions& options) {
  return Fitter(base, options).Run(classes);
}

}  // namespace bucketd
