#include "client/ctl/costs_diff.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/json.h"
#include "client/render/table.h"

#include "passes/cost/device_model.h"

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

struct Diff {
  std::vector<NumberDiff> numbers;
  std::vector<LinkDiff> links;
};

Diff Compare(const CostProfile& a, const CostProfile& b) {
  Diff diff;
  const auto in_a = NumbersOf(a), in_b = NumbersOf(b);
  for (size_t i = 0; i < in_a.size(); ++i) {
    if (in_a[i].second != in_b[i].second) {
      diff.numbers.push_back({in_a[i].first, in_a[i].second, in_b[i].second});
    }
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

std::vector<std::pair<std::string, double>> NumbersOf(const CostProfile& p) {
  const DeviceModel& d = p.device;
  return {{"compute_scale", p.compute_scale},
          {"alpha_scale", p.alpha_scale},
          {"busbw_scale", p.busbw_scale},
          {"gamma_us", p.gamma_us},
          {"hbm_bytes_per_s", p.hbm_bytes_per_s},
          {"copy_launch_us", p.copy_launch_us},
          {"overlap_slowdown", p.overlap_slowdown},
          {"host_us_per_kernel", p.host_us_per_kernel},
          {"host_us_per_collective", p.host_us_per_collective},
          {"comm_copy_share", p.comm_copy_share},
          {"device.peak_flops_half", d.peak_flops_half},
          {"device.peak_flops_single", d.peak_flops_single},
          {"device.memory_bytes_per_s", d.memory_bytes_per_s},
          {"device.launch_us", d.launch_us},
          {"device.alpha_us", d.alpha_us},
          {"device.hop_us", d.hop_us},
          {"device.inter_hop_us", d.inter_hop_us},
          {"device.intra_node_bytes_per_s", d.intra_node_bytes_per_s},
          {"device.inter_node_bytes_per_s", d.inter_node_bytes_per_s}};
}

std::string DiffText(const CostProfile& a, const CostProfile& b) {
  const Diff diff = Compare(a, b);
  if (diff.numbers.empty() && diff.links.empty()) {
    return absl::StrCat(Id(a), " and ", Id(b), " have the same numbers\n");
  }
  constexpr auto kRight = Table::Align::kRight;
  std::string text;
  if (!diff.numbers.empty()) {
    Table table({{"number"}, {Id(a), kRight}, {Id(b), kRight}, {"moves", kRight}});
    for (const NumberDiff& n : diff.numbers) {
      table.AddRow({n.name, Number(n.a), Number(n.b), Moves(n.a, n.b)});
    }
    absl::StrAppend(&text, table.Text(), diff.links.empty() ? "" : "\n");
  }
  if (!diff.links.empty()) {
    Table table({{"links"},
                 {"latency us", kRight},
                 {"now", kRight},
                 {"GB/s", kRight},
                 {"now", kRight},
                 {"64 KiB take", kRight},
                 {"64 MiB take", kRight}});
    for (const LinkDiff& l : diff.links) {
      const auto moves = [&](double bytes) {
        return Moves(MessageUs(l.of, l.a, bytes), MessageUs(l.of, l.b, bytes));
      };
      table.AddRow({Describe(l.of), Number(l.a.alpha_us), Number(l.b.alpha_us), GbPerSecond(l.a),
                    GbPerSecond(l.b), moves(65536.0), moves(67108864.0)});
    }
    absl::StrAppend(&text, table.Text());
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
  return Json::Object({{"a", Id(a)},
                       {"b", Id(b)},
                       {"equal", diff.numbers.empty() && diff.links.empty()},
                       {"numbers", Json::List(diff.numbers, number)},
                       {"links", Json::List(diff.links, link)}})
      .Text();
}

std::string LinksText(const CostProfile& profile) {
  if (profile.links.empty()) return "";
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"links"},
               {"latency us", kRight},
               {"GB/s", kRight},
               {"samples", kRight},
               {"reporters", kRight},
               {"error", kRight}});
  for (const MeasuredLink& link : profile.links) {
    table.AddRow({Describe(link.of), Number(link.alpha_us),
                  absl::StrFormat("%.2f", link.busbw_bytes_per_s * 1e-9),
                  absl::StrCat(link.samples), absl::StrCat(link.reporters),
                  absl::StrFormat("%.1f %%", link.error * 100.0)});
  }
  return table.Text();
}

}  // namespace bucketd::ctl
