#include "client/ctl/costs_diff.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/json.h"
#include "client/render/table.h"

#include "passes/cost/device_model.h"
#include "passes/cost/profile_numbers.h"

namespace bucketd::ctl {
namespace {

struct NumberDiff {
  std::string name;
  double a = 0.0, b = 0.0;
};

struct LinkDiff {
  LinkClass of;
  StatedCosts::Link a, b;
};

struct KernelDiff {
  const MeasuredKernel* a = nullptr;  // null: not measured
  const MeasuredKernel* b = nullptr;

  const MeasuredKernel& either() const { return a != nullptr ? *a : *b; }
};

struct Diff {
  std::vector<NumberDiff> numbers;
  std::vector<LinkDiff> links;
  std::vector<KernelDiff> kernels;

  bool none() const { return numbers.empty() && links.empty() && kernels.empty(); }
};

std::vector<KernelDiff> CompareKernels(const CostProfile& a, const CostProfile& b) {
  std::map<std::string, KernelDiff> by_signature;
  for (const MeasuredKernel& kernel : a.kernels) by_signature[kernel.signature].a = &kernel;
  for (const MeasuredKernel& kernel : b.kernels) by_signature[kernel.signature].b = &kernel;
  std::vector<KernelDiff> found;
  for (const auto& [signature, pair] : by_signature) {
    const bool same = pair.a != nullptr && pair.b != nullptr && pair.a->us == pair.b->us;
    if (!same) found.push_back(pair);
  }
  return found;
}

Diff Compare(const CostProfile& a, const CostProfile& b) {
  Diff diff;
  for (const ProfileNumber& number : ProfileNumbers()) {
    if (number.In(a) == number.In(b)) continue;
    diff.numbers.push_back({number.FullName(), number.In(a), number.In(b)});
  }
  // A class that only one of them measured is what the other one's model says.
  std::set<LinkClass> classes;
  for (const CostProfile* profile : {&a, &b}) {
    for (const MeasuredLink& link : profile->links) classes.insert(link.of);
  }
  for (const LinkClass& of : classes) {
    const LinkDiff link{of, LinkUnder(a, of), LinkUnder(b, of)};
    if (link.a.alpha_us != link.b.alpha_us ||
        link.a.busbw_bytes_per_s != link.b.busbw_bytes_per_s) {
      diff.links.push_back(link);
    }
  }
  diff.kernels = CompareKernels(a, b);
  return diff;
}

std::string Number(double value) { return absl::StrFormat("%.6g", value); }

std::string Moves(double from, double to) {
  if (from == to) return "=";
  if (from == 0.0) return "from 0";
  return absl::StrFormat("%+.1f %%", (to / from - 1.0) * 100.0);
}

double MessageUs(const LinkClass& of, const StatedCosts::Link& link, double bytes) {
  return link.alpha_us + WireFactor(of.kind, of.group_size) * bytes / link.busbw_bytes_per_s * 1e6;
}

std::string GbPerSecond(const StatedCosts::Link& link) {
  return absl::StrFormat("%.2f", link.busbw_bytes_per_s * 1e-9);
}

std::string Id(const CostProfile& profile) {
  return absl::StrCat(profile.name, "@", profile.version);
}

}  // namespace

std::string DiffText(const CostProfile& a, const CostProfile& b) {
  const Diff diff = Compare(a, b);
  if (diff.none()) {
    return absl::StrCat(Id(a), " and ", Id(b), " have the same numbers\n");
  }
  std::string text;
  if (!diff.numbers.empty()) {
    Table table("lrrr", {"number", Id(a), Id(b), "moves"});
    for (const NumberDiff& n : diff.numbers) {
      table.AddRow({n.name, Number(n.a), Number(n.b), Moves(n.a, n.b)});
    }
    absl::StrAppend(&text, table.Text());
  }
  if (!diff.links.empty()) {
    Table table("lrrrrrr",
                {"links", "latency us", "now", "GB/s", "now", "64 KiB take", "64 MiB take"});
    for (const LinkDiff& l : diff.links) {
      const auto moves = [&](double bytes) {
        return Moves(MessageUs(l.of, l.a, bytes), MessageUs(l.of, l.b, bytes));
      };
      table.AddRow({Describe(l.of), Number(l.a.alpha_us), Number(l.b.alpha_us), GbPerSecond(l.a),
                    GbPerSecond(l.b), moves(65536.0), moves(67108864.0)});
    }
    absl::StrAppend(&text, text.empty() ? "" : "\n", table.Text());
  }
  if (!diff.kernels.empty()) {
    Table table("llrrr", {"kernels", "signature", "us", "now", "moves"});
    const auto us = [](const MeasuredKernel* k) { return k == nullptr ? "-" : Number(k->us); };
    for (const KernelDiff& k : diff.kernels) {
      table.AddRow({k.either().op, k.either().signature, us(k.a), us(k.b),
                    k.a == nullptr || k.b == nullptr ? "" : Moves(k.a->us, k.b->us)});
    }
    absl::StrAppend(&text, text.empty() ? "" : "\n", table.Text());
  }
  return text;
}

std::string DiffJson(const CostProfile& a, const CostProfile& b) {
  const Diff diff = Compare(a, b);
  const auto number = [](const NumberDiff& n) {
    return Json::Object({{"name", n.name}, {"a", n.a}, {"b", n.b}});
  };
  const auto link = [](const LinkDiff& l) {
    return Json::Object({{"class", Describe(l.of)},
                         {"alpha_us_a", l.a.alpha_us},
                         {"alpha_us_b", l.b.alpha_us},
                         {"busbw_a", l.a.busbw_bytes_per_s},
                         {"busbw_b", l.b.busbw_bytes_per_s}});
  };
  const auto us = [](const MeasuredKernel* k) { return k == nullptr ? Json() : Json(k->us); };
  const auto kernel = [&](const KernelDiff& k) {
    return Json::Object({{"signature", k.either().signature},
                         {"op", k.either().op},
                         {"us_a", us(k.a)},
                         {"us_b", us(k.b)}});
  };
  return Json::Object({{"a", Id(a)},
                       {"b", Id(b)},
                       {"equal", diff.none()},
                       {"numbers", Json::List(diff.numbers, number)},
                       {"links", Json::List(diff.links, link)},
                       {"kernels", Json::List(diff.kernels, kernel)}})
      .Text();
}

std::string LinksText(const CostProfile& profile) {
  if (profile.links.empty()) return "";
  Table table("lrrrrr", {"links", "latency us", "GB/s", "samples", "reporters", "error"});
  for (const MeasuredLink& link : profile.links) {
    table.AddRow({Describe(link.of), Number(link.alpha_us),
                  absl::StrFormat("%.2f", link.busbw_bytes_per_s * 1e-9),
                  absl::StrCat(link.samples), absl::StrCat(link.reporters),
                  absl::StrFormat("%.1f %%", link.error * 100.0)});
  }
  return table.Text();
}

}  // namespace bucketd::ctl
