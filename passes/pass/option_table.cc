#include "passes/pass/option_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "passes/base/status_macros.h"

namespace bucketd {
namespace {

constexpr int64_t kMega = int64_t{1} << 20;

absl::Status Expected(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("is \"", text, "\", expected ", what));
}

// Text and back, by the type of the field.
absl::Status Read(absl::string_view text, std::string& out) {
  out = std::string(text);
  return absl::OkStatus();
}
std::string Show(const std::string& value) { return value; }

absl::Status Read(absl::string_view text, bool& out) {
  if (text != "on" && text != "off") return Expected(text, "on or off");
  out = text == "on";
  return absl::OkStatus();
}
std::string Show(bool value) { return value ? "on" : "off"; }

absl::Status Read(absl::string_view text, std::vector<std::string>& out) {
  out = absl::StrSplit(text, ',', absl::SkipEmpty());
  return absl::OkStatus();
}
std::string Show(const std::vector<std::string>& value) { return absl::StrJoin(value, ","); }

// SimpleAtoi() takes spaces and signs too.
bool ReadDigits(absl::string_view text, int64_t& out) {
  return absl::c_all_of(
             text, [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }) &&
         absl::SimpleAtoi(text, &out);
}

template <typename Int>
absl::Status ReadInt(absl::string_view text, Int& out) {
  constexpr int64_t kMost = std::numeric_limits<Int>::max();
  int64_t value = 0;
  if (!ReadDigits(text, value) || value > kMost) {
    return Expected(text, absl::StrCat("a whole number, 0 to ", kMost, ", in digits alone"));
  }
  out = static_cast<Int>(value);
  return absl::OkStatus();
}
absl::Status Read(absl::string_view text, int32_t& out) { return ReadInt(text, out); }
absl::Status Read(absl::string_view text, int64_t& out) { return ReadInt(text, out); }
std::string Show(int32_t value) { return value == kNoLimit ? "none" : absl::StrCat(value); }
std::string Show(int64_t value) { return value == kNoLimit ? "none" : absl::StrCat(value); }

template <typename Enum>
absl::Status ReadName(absl::string_view text, absl::Span<const absl::string_view> names, Enum first,
                      Enum& out) {
  const auto it = std::find(names.begin(), names.end(), text);
  if (it == names.end()) {
    return Expected(text, absl::StrCat("one of: ", absl::StrJoin(names, ", ")));
  }
  out = static_cast<Enum>(static_cast<int>(first) + (it - names.begin()));
  return absl::OkStatus();
}
constexpr absl::string_view kChoices[] = {"auto", "on", "off"};
constexpr absl::string_view kRules[] = {"max", "min"};
constexpr absl::string_view kDense[] = {"off", "on", "strict"};
absl::Status Read(absl::string_view text, Choice& out) {
  return ReadName(text, kChoices, Choice::kAuto, out);
}
absl::Status Read(absl::string_view text, MemoryRule& out) {
  return ReadName(text, kRules, MemoryRule::kMax, out);
}
absl::Status Read(absl::string_view text, DenseRegions& out) {
  return ReadName(text, kDense, DenseRegions::kOff, out);
}
absl::Status Read(absl::string_view text, Numerics& out) {
  return ReadName(text, NamesOf<Numerics>(), Numerics::kEagerOrder, out);
}
std::string Show(Choice value) { return std::string(kChoices[static_cast<size_t>(value)]); }
std::string Show(MemoryRule value) { return std::string(kRules[static_cast<size_t>(value)]); }
std::string Show(DenseRegions value) { return std::string(kDense[static_cast<size_t>(value)]); }
std::string Show(Numerics value) { return std::string(Name(value)); }

// Mebibytes with up to six decimals, rounded down to bytes; or bytes with the suffix B.
absl::Status ReadSize(absl::string_view text, int64_t& out) {
  if (absl::EndsWith(text, "B") && ReadDigits(text.substr(0, text.size() - 1), out)) {
    return absl::OkStatus();
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('.', 1));
  const bool has_point = parts.first.size() < text.size();
  const std::string padded = absl::StrCat(parts.second, "000000").substr(0, 6);
  int64_t whole = 0, millionths = 0;
  if (has_point == parts.second.empty() || parts.second.size() > 6 ||
      !ReadDigits(parts.first, whole) || whole > int64_t{1} << 40 ||
      !ReadDigits(padded, millionths)) {
    return Expected(text, "mebibytes, for example 25 or 27.5, or bytes, 1000B");
  }
  out = whole * kMega + millionths * kMega / 1'000'000;
  return absl::OkStatus();
}
std::string ShowSize(int64_t bytes) {
  if (bytes == kNoLimit) return "none";
  if (bytes % kMega == 0) return absl::StrCat(bytes / kMega);
  return absl::StrCat(bytes, "B");
}

template <auto kField>
absl::Status Set(PlanOptions& options, absl::string_view text) {
  return Read(text, options.*kField);
}
template <auto kField>
std::string Print(const PlanOptions& options) {
  return Show(options.*kField);
}
template <auto kField>
absl::Status SetSize(PlanOptions& options, absl::string_view text) {
  return ReadSize(text, options.*kField);
}
template <auto kField>
std::string PrintSize(const PlanOptions& options) {
  return ShowSize(options.*kField);
}

// Where there may be no limit.
template <auto kField, auto kSet>
absl::Status SetOrNone(PlanOptions& options, absl::string_view text) {
  if (text != "none") return kSet(options, text);
  options.*kField = kNoLimit;
  return absl::OkStatus();
}

absl::Status SetCaps(PlanOptions& options, absl::string_view text) {
  options.bucket_cap_bytes.clear();
  if (text == "auto") return absl::OkStatus();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int64_t bytes = 0;
    RETURN_IF_ERROR(ReadSize(part, bytes));
    options.bucket_cap_bytes.push_back(bytes);
  }
  return absl::OkStatus();
}
std::string PrintCaps(const PlanOptions& options) {
  if (options.bucket_cap_bytes.empty()) return "auto";
  return absl::StrJoin(options.bucket_cap_bytes, ",", [](std::string* out, int64_t bytes) {
    absl::StrAppend(out, ShowSize(bytes));
  });
}

using O = PlanOptions;
constexpr absl::string_view kEvery = "every mode";
constexpr absl::string_view kUnits = "transformer_block, manual";
constexpr absl::string_view kMoved = "transformer_block, manual, greedy";
constexpr absl::string_view kGreedy = "greedy, overlap";
constexpr absl::string_view kOverlap = "overlap";
constexpr absl::string_view kAuto = "auto";
constexpr OptionInfo kOptions[] = {
    {"mode", "NAME", "how buckets are found", kEvery, true, Set<&O::mode>, Print<&O::mode>},
    {"numerics", "eager_order | exact | free",
     "sums of gradients: eager_order: added in eager's order of parameters, eager FSDP2's bits "
     "where each bucket is one of its units (transformer_block); exact: the unplanned graph's "
     "bits; free: any. The plan says whose bits then hold",
     kEvery, true, Set<&O::numerics>, Print<&O::numerics>},
    {"backend", "nccl | gloo", "whose order of summation is meant", kEvery, true, Set<&O::backend>,
     Print<&O::backend>},
    {"memory_limit_ppm", "N", "peak memory, in millionths of program order's", kEvery, true,
     Set<&O::memory_limit_ppm>, Print<&O::memory_limit_ppm>},
    {"memory_limit_bytes", "N", "peak memory in bytes; 0: by memory_limit_ppm", kEvery, true,
     Set<&O::memory_limit_bytes>, Print<&O::memory_limit_bytes>},
    {"resident_bytes", "N", "what lives beside the graph: counted into peaks and limits", kEvery,
     false, Set<&O::resident_bytes>, Print<&O::resident_bytes>},
    {"buckets", "ENTRIES",
     "entries separated by commas, a+b joins; globs, not regular expressions: x.[0-3] counts, * is "
     "any component; name:a+b is one entry of that name, whatever its patterns expand to",
     "manual", true, Set<&O::buckets>, Print<&O::buckets>},
    {"prefetch_forward", "N", "units ahead that gathers start in the forward", kMoved, true,
     Set<&O::prefetch_forward>, Print<&O::prefetch_forward>},
    {"prefetch_backward", "N", "units ahead that gathers start in the backward", kMoved, true,
     Set<&O::prefetch_backward>, Print<&O::prefetch_backward>},
    {"defer_reduce_scatter", "N", "units later that gradients' reductions are waited for", kMoved,
     true, Set<&O::defer_reduce_scatter>, Print<&O::defer_reduce_scatter>},
    {"reorder", "all | none | ENTRIES", "units whose collectives move", kMoved, true,
     Set<&O::reorder>, Print<&O::reorder>},
    {"parameter_order", "FQN[,FQN...]", "eager registration order", kEvery, true,
     Set<&O::parameter_order>, Print<&O::parameter_order>},
    {"strict_coverage", "on | off", "a collective that no entry holds is an error", kUnits, true,
     Set<&O::strict_coverage>, Print<&O::strict_coverage>},
    {"dense_regions", "off | on | strict",
     "start gathers and reductions in the attention part of neighbouring layers; strict: or fail",
     kUnits, false, Set<&O::dense_regions>, Print<&O::dense_regions>},
    {"upstream", "on | off",
     "after torch 2.13, known defects included, for comparison; mode overlap equals it on captured "
     "steps that passes/DECISIONS.md names, and only with pre_bucketing off",
     kEvery, false, Set<&O::upstream>, Print<&O::upstream>},
    {"bucket_all_reduce", "on | off",
     "merge gradients' all-reduces, as eager DDP's reducer does; sums of more than two ranks are "
     "then neither its bits nor the unplanned graph's, which numerics exact keeps; off: they stay "
     "alone",
     kEvery, false, Set<&O::bucket_all_reduce>, Print<&O::bucket_all_reduce>},
    {"primary_group_only", "on | off", "merge only on the group with most parameter gathers",
     kGreedy, false, Set<&O::primary_group_only>, Print<&O::primary_group_only>},
    {"bucket_cap_mb", "MB[,MB...] | auto",
     "bytes of bucket 0, 1, ... of a key, the last repeats; auto: what saturates the link", kGreedy,
     false, SetCaps, PrintCaps},
    {"max_topo_span", "N | none", "how far apart members may stand in program order", kGreedy,
     false, SetOrNone<&O::max_topo_span, Set<&O::max_topo_span>>, Print<&O::max_topo_span>},
    {"pre_bucketing", "on | off", "merge by bytes before scheduling", kOverlap, false,
     Set<&O::pre_bucketing>, Print<&O::pre_bucketing>},
    {"overlap_bucketing", "on | off", "merge after scheduling", kOverlap, false,
     Set<&O::overlap_bucketing>, Print<&O::overlap_bucketing>},
    {"max_in_flight_mb", "MB", "bytes of collectives under way", kOverlap, false,
     SetSize<&O::max_in_flight_bytes>, PrintSize<&O::max_in_flight_bytes>},
    {"max_compute_prefetch", "N", "compute nodes that a gather may run ahead", kOverlap, false,
     Set<&O::max_compute_prefetch>, Print<&O::max_compute_prefetch>},
    {"max_collective_distance", "N", "candidates looked at", kOverlap, false,
     Set<&O::max_collective_distance>, Print<&O::max_collective_distance>},
    {"compute_overlap_ppm", "N", "millionths of a kernel's time that hide", kOverlap, false,
     Set<&O::compute_overlap_ppm>, Print<&O::compute_overlap_ppm>},
    {"max_memory_increase_mb", "MB | none", "while scheduling, over program order", kOverlap, false,
     SetOrNone<&O::max_memory_increase_bytes, SetSize<&O::max_memory_increase_bytes>>,
     PrintSize<&O::max_memory_increase_bytes>},
    {"max_memory_increase_ppm", "N | none", "the same in millionths of program order's", kOverlap,
     false, SetOrNone<&O::max_memory_increase_ppm, Set<&O::max_memory_increase_ppm>>,
     Print<&O::max_memory_increase_ppm>},
    {"memory_rule", "max | min", "which of the two increases counts", kOverlap, false,
     Set<&O::memory_rule>, Print<&O::memory_rule>},
    {"max_off_path_mb", "MB", "bytes of a key off the path before they go", kOverlap, false,
     SetSize<&O::max_off_path_bytes>, PrintSize<&O::max_off_path_bytes>},
    {"bucket_exposed_first", "auto | on | off", "seed buckets with what is exposed", kOverlap,
     false, Set<&O::bucket_exposed_first>, Print<&O::bucket_exposed_first>},
    {"bucket_only_internode", "on | off", "leave groups within a node alone", kOverlap, false,
     Set<&O::bucket_only_internode>, Print<&O::bucket_only_internode>},
    {"prioritize_bucketing", "on | off", "prefetch collectives of a key together", kOverlap, false,
     Set<&O::prioritize_bucketing>, Print<&O::prioritize_bucketing>},
    {"overlap_bucket_cap_mb", "MB", "bytes of a bucket", kOverlap, false,
     SetSize<&O::overlap_bucket_cap_bytes>, PrintSize<&O::overlap_bucket_cap_bytes>},
    {"autofix_cycles", "on | off", "upstream: drop control edges that make a cycle", kOverlap,
     false, Set<&O::autofix_cycles>, Print<&O::autofix_cycles>},
    {"effort", "0-9", "work of the search; each step doubles it", kAuto, false, Set<&O::effort>,
     Print<&O::effort>},
};

}  // namespace

absl::Span<const OptionInfo> AllOptions() { return kOptions; }

const OptionInfo* FindOption(absl::string_view name) {
  for (const OptionInfo& option : kOptions) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

absl::Status SetOption(PlanOptions& options, absl::string_view name, absl::string_view text) {
  const OptionInfo* option = FindOption(name);
  if (option == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown option \"", name,
        "\"; known: ", absl::StrJoin(kOptions, ", ", [](std::string* out, const OptionInfo& known) {
          absl::StrAppend(out, known.name);
        })));
  }
  const absl::Status status = option->set(options, text);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(name, " ", status.message()));
}

std::vector<std::string> UnreadOptions(const PlanOptions& options) {
  const PlanOptions standard;
  std::vector<std::string> unread;
  for (const OptionInfo& option : kOptions) {
    const std::vector<absl::string_view> readers = absl::StrSplit(option.group, ", ");
    const std::string value = option.print(options);
    if (option.group == kEvery || value == option.print(standard)) continue;
    if (std::find(readers.begin(), readers.end(), options.mode) != readers.end()) continue;
    unread.push_back(absl::StrCat(
        option.name, "=", value, " is for mode", readers.size() > 1 ? "s " : " ", option.group,
        options.mode == "auto" ? ": mode auto only tries those with it"
                               : absl::StrCat("; mode ", options.mode, " does not read it")));
  }
  return unread;
}

}  // namespace bucketd
