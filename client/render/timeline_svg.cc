#include "client/render/timeline_svg.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace bucketd {
namespace {

constexpr double kWidth = 1200, kLeft = 150, kRight = 20, kRowHeight = 22, kRowGap = 6, kTitle = 30;
constexpr absl::string_view kStyle =
    "text{font:12px sans-serif;fill:#222}.t{font-weight:bold}.l{fill:#555}.c{fill:#4c78a8}"
    ".k{fill:#9d755d}.w{fill:#54a24b}.s{fill:#e45756}.n{font-size:10px;fill:#fff}";

std::string Escape(absl::string_view text) {
  // The last two, U+FFFE and U+FFFF, are no characters of XML, even escaped.
  return absl::StrReplaceAll(text, {{"&", "&amp;"},
                                    {"<", "&lt;"},
                                    {">", "&gt;"},
                                    {"\"", "&quot;"},
                                    {"\xef\xbf\xbe", "?"},
                                    {"\xef\xbf\xbf", "?"}});
}

struct Box {
  absl::string_view style;
  std::string label;
  int64_t start_ps = 0, end_ps = 0;
};

// Adjacent boxes of one style closer than `gap_ps` become one; a joined box says nothing.
std::vector<Box> Join(std::vector<Box> boxes, int64_t gap_ps) {
  std::vector<Box> joined;
  for (Box& box : boxes) {
    if (!joined.empty() && joined.back().style == box.style &&
        box.start_ps - joined.back().end_ps < gap_ps &&
        (box.end_ps - box.start_ps < 8 * gap_ps || joined.back().label.empty())) {
      joined.back().end_ps = std::max(joined.back().end_ps, box.end_ps);
      joined.back().label.clear();
    } else {
      joined.push_back(std::move(box));
    }
  }
  return joined;
}

// Rows in order: compute, then one a group, by group id.
std::map<GroupId, std::vector<Box>> Rows(const Graph& graph, const TimelinePanel& panel) {
  using Kind = TimelineEvent::Kind;
  std::map<GroupId, std::vector<Box>> rows;
  rows[-1];
  for (const TimelineEvent& event : panel.simulation->events) {
    const bool bucket = event.bucket >= 0;
    const std::string name =
        bucket ? panel.plan->buckets[static_cast<size_t>(event.bucket)].name : std::string();
    const auto add = [&](GroupId row, absl::string_view style, std::string label) {
      rows[row].push_back({style, std::move(label), event.start_ps, event.end_ps});
    };
    switch (event.kind) {
      case Kind::kCompute:
        add(-1, "c", "");
        break;
      case Kind::kCopyIn:
      case Kind::kCopyOut:
        add(-1, "k", "");
        break;
      case Kind::kStall:
        add(-1, "s", "");
        break;
      case Kind::kCollective:
        add(event.group, "w",
            bucket ? name
                   : std::string(graph.string(
                         graph.collective(graph.collective_of(event.node)).parameter)));
        break;
    }
  }
  return rows;
}

void DrawRow(std::string& svg, absl::string_view title, const std::vector<Box>& boxes, double y,
             double pixels_per_ps) {
  absl::StrAppendFormat(&svg, "<text class=\"l\" x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>\n",
                        kLeft - 8, y + 15, Escape(title));
  const int64_t pixel = static_cast<int64_t>(1.0 / pixels_per_ps) + 1;
  for (const Box& box : Join(boxes, pixel)) {
    const double x = kLeft + static_cast<double>(box.start_ps) * pixels_per_ps;
    const double width =
        std::max(0.5, static_cast<double>(box.end_ps - box.start_ps) * pixels_per_ps);
    absl::StrAppendFormat(
        &svg,
        "<rect class=\"%s\" x=\"%.2f\" y=\"%g\" width=\"%.2f\" height=\"%g\"><title>"
        "%s %.1f us</title></rect>\n",
        box.style, x, y, width, kRowHeight, Escape(box.label),
        static_cast<double>(box.end_ps - box.start_ps) / 1e6);
    if (!box.label.empty() && width > 7.0 * static_cast<double>(box.label.size())) {
      absl::StrAppendFormat(&svg, "<text class=\"n\" x=\"%.2f\" y=\"%g\">%s</text>\n", x + 3,
                            y + 15, Escape(box.label));
    }
  }
}

}  // namespace

std::string TimelineSvg(const Graph& graph, absl::Span<const TimelinePanel> panels) {
  int64_t longest = 1;
  for (const TimelinePanel& panel : panels) {
    longest = std::max(longest, panel.simulation->prediction.total_ps);
  }
  const double pixels_per_ps = (kWidth - kLeft - kRight) / static_cast<double>(longest);
  std::string body;
  double y = 8;
  for (const TimelinePanel& panel : panels) {
    const Prediction& p = panel.simulation->prediction;
    absl::StrAppendFormat(&body,
                          "<text class=\"t\" x=\"%g\" y=\"%g\">%s: %.3f ms, %.3f ms exposed, "
                          "%d collectives</text>\n",
                          kLeft, y + 16, Escape(panel.title), static_cast<double>(p.total_ps) / 1e9,
                          static_cast<double>(p.exposed_ps) / 1e9, p.collectives);
    y += kTitle - kRowGap;
    for (const auto& [group, boxes] : Rows(graph, panel)) {
      const std::string title =
          group < 0 ? "compute" : graph.groups()[static_cast<size_t>(group)].mesh_dim;
      DrawRow(body, title, boxes, y, pixels_per_ps);
      y += kRowHeight + kRowGap;
    }
    y += kRowGap;
  }
  absl::StrAppendFormat(&body,
                        "<rect class=\"c\" x=\"%1$g\" y=\"%2$g\" width=\"12\" height=\"12\"/><text "
                        "x=\"%3$g\" y=\"%4$g\">compute</text>"
                        "<rect class=\"k\" x=\"%5$g\" y=\"%2$g\" width=\"12\" height=\"12\"/><text "
                        "x=\"%6$g\" y=\"%4$g\">copy</text>"
                        "<rect class=\"w\" x=\"%7$g\" y=\"%2$g\" width=\"12\" height=\"12\"/><text "
                        "x=\"%8$g\" y=\"%4$g\">collective</text>"
                        "<rect class=\"s\" x=\"%9$g\" y=\"%2$g\" width=\"12\" height=\"12\"/><text "
                        "x=\"%10$g\" y=\"%4$g\">compute waits</text>\n",
                        kLeft, y, kLeft + 18, y + 11, kLeft + 100, kLeft + 118, kLeft + 170,
                        kLeft + 188, kLeft + 270, kLeft + 288);
  y += 24;
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g "
      "%g\">\n"
      "<style>%s</style><rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n",
      kWidth, y, kWidth, y, kStyle, body);
}

}  // namespace bucketd
