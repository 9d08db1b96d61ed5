#include "passes/io/torch_trace_events.h"

#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "passes/io/gzip.h"
#include "simdjson.h"

namespace bucketd::torch_trace {
namespace {

namespace od = simdjson::ondemand;

constexpr int64_t kMaxRank = (1 << 24) - 1;
// Lists of ranks are quadratic in the ranks of a job; this is a thousand groups of all ranks.
constexpr size_t kMaxRanks = size_t{1} << 24;
constexpr size_t kMaxEvents = size_t{1} << 21;  // of interest
// Of the clock and of a span: a century, and ten days. Picoseconds of the latter fit 64 bits.
constexpr int64_t kMaxBaseNs = 4'000'000'000'000'000'000;
constexpr double kMaxStartUs = 4e15;
constexpr double kMaxDurationUs = 1e12;

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }
std::string Text(od::value value) { return std::string(std::string_view(value.get_string())); }

[[noreturn]] void Refuse(simdjson::error_code code) { throw simdjson::simdjson_error(code); }

// What is too large for 64 bits, or no integer, stands for nothing stated.
int64_t IntegerOrNone(od::value value) {
  int64_t number = -1;
  return value.get_int64().get(number) == simdjson::SUCCESS ? number : -1;
}

std::string TextOrNone(od::value value) {
  std::string_view text;
  return value.get_string().get(text) == simdjson::SUCCESS ? std::string(text) : std::string();
}

struct Tensor {
  bool is_list = false;
  int32_t count = 0;
  int64_t elements = 1;
  std::vector<int64_t> listed;
};

// One argument: [] or [4, 16], or [[4, 16], [8]] for a list of tensors.
Tensor ReadArgument(od::value value, bool in_list = false) {
  Tensor tensor;
  if (value.type() != od::json_type::array) return tensor;
  for (od::value item : value.get_array()) {
    ++tensor.count;
    if (item.type() == od::json_type::array) {
      tensor.is_list = true;
      if (!in_list) tensor.listed.push_back(ReadArgument(item, true).elements);
      continue;
    }
    const int64_t size = item.get_int64();
    const bool fits = size >= 0 && tensor.elements >= 0 &&
                      !__builtin_mul_overflow(tensor.elements, size, &tensor.elements);
    if (!fits) tensor.elements = -1;
  }
  return tensor;
}

void ReadDims(od::value value, Shapes& shapes) {
  shapes.stated = true;
  for (od::value item : value.get_array()) {
    const Tensor tensor = ReadArgument(item);
    if (tensor.is_list) {
      if (shapes.listed == 0) {
        shapes.listed = tensor.count;
        shapes.listed_sizes = tensor.listed;
      }
      continue;
    }
    ++shapes.tensors;
    shapes.sizes.push_back(tensor.elements);
    const bool fits = shapes.elements >= 0 && tensor.elements >= 0 &&
                      !__builtin_add_overflow(shapes.elements, tensor.elements, &shapes.elements);
    if (!fits) shapes.elements = -1;
  }
}

void ReadTypes(od::value value, Shapes& shapes) {
  bool first = true;
  for (od::value item : value.get_array()) {
    const std::string type = Text(item);
    if (first) shapes.dtype = type;
    shapes.mixed = shapes.mixed || type != shapes.dtype;
    first = false;
  }
}

void ReadArgs(od::object args, Event& event) {
  for (auto field : args) {
    const absl::string_view key = View(field.unescaped_key());
    od::value v = field.value();
    if (key == "External id") event.external_id = IntegerOrNone(v);
    if (key == "correlation") event.correlation = IntegerOrNone(v);
    if (key == "Collective name") event.collective = TextOrNone(v);
    if (key == "dtype") event.dtype = TextOrNone(v);
    if (key == "In msg nelems") event.in_elements = IntegerOrNone(v);
    if (key == "Out msg nelems") event.out_elements = IntegerOrNone(v);
    if (key == "In split size") event.in_split = TextOrNone(v);
    if (key == "Out split size") event.out_split = TextOrNone(v);
    if (key == "Group size") event.group_size = IntegerOrNone(v);
    if (key == "Process Group Name") event.group_name = TextOrNone(v);
    if (key == "Process Group Description") event.group_desc = TextOrNone(v);
    if (key == "Process Group Ranks") event.group_ranks = TextOrNone(v);
    if (key == "Seq") event.sequence = IntegerOrNone(v);
    if (key == "Input Dims") ReadDims(v, event.shapes);
    if (key == "Input type") ReadTypes(v, event.shapes);
  }
}

// Whether the event is of interest for a step of FSDP2 alone, and as what.
bool ClassifyForStep(absl::string_view category, Event& event) {
  if (category == "user_annotation" && absl::StartsWith(event.name, "FSDP::")) {
    event.kind = Event::Kind::kMark;
  } else if (event.name == "fsdp::all_gather_copy_in") {
    event.kind = Event::Kind::kCopyIn;
  } else if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") {
    event.kind = Event::Kind::kWork;
  } else if (category == "cuda_runtime" || category == "cuda_driver") {
    event.kind = Event::Kind::kLaunch;
  } else {
    return false;
  }
  return true;
}

// Whether the event is of interest, and as what.
bool Classify(absl::string_view phase, absl::string_view category, Interest interest,
              Event& event) {
  if (phase != "X") return false;
  if (category == "kernel" && absl::StrContains(event.name, "nccl")) {
    event.kind = Event::Kind::kKernel;
  } else if (event.name == "record_param_comms") {
    event.kind = Event::Kind::kComms;
  } else if (absl::StartsWith(event.name, "gloo:")) {
    event.kind = Event::Kind::kGlooSpan;
  } else if (absl::StartsWith(event.name, "c10d::")) {
    event.kind = Event::Kind::kCall;
  } else if (absl::StartsWith(event.name, "_c10d_functional::")) {
    event.kind = Event::Kind::kFunctional;
  } else {
    return interest == Interest::kStep && ClassifyForStep(category, event);
  }
  return true;
}

class EventReader {
 public:
  EventReader(Interest interest, Trace& trace, std::string& place)
      : interest_(interest), trace_(trace), place_(place) {}

  void ReadAll(od::array events) {
    int64_t index = 0;
    for (od::value item : events) {
      place_ = absl::StrCat("traceEvents[", index++, "]");
      Read(item.get_object());
    }
  }

 private:
  // Arguments are read last, and only of the few events that are of interest.
  void Read(od::object object) {
    Event event;
    std::string_view phase, category, args;
    bool has_start = false, has_duration = false;
    for (auto field : object) {
      const absl::string_view key = View(field.unescaped_key());
      od::value v = field.value();
      if (key == "ph") phase = v.get_string();
      if (key == "cat") category = v.get_string();
      if (key == "name") event.name = Text(v);
      if (key == "tid") event.thread = IntegerOrNone(v);
      if (key == "ts") has_start = ReadTime(v, kMaxStartUs, event.start_ns);
      if (key == "dur") has_duration = ReadTime(v, kMaxDurationUs, event.duration_ns);
      if (key == "args") args = od::object(v.get_object()).raw_json();
    }
    if (!Classify(View(phase), View(category), interest_, event)) return;
    place_ = absl::StrCat(place_, " (", absl::CHexEscape(event.name.substr(0, 80)), ")");
    if (!has_start || !has_duration) Refuse(simdjson::NUMBER_ERROR);
    if (trace_.events.size() == kMaxEvents) Refuse(simdjson::CAPACITY);
    if (!args.empty()) {
      // The rest of the document, and the room behind it, follow.
      od::document parsed =
          args_parser_.iterate(args.data(), args.size(), args.size() + simdjson::SIMDJSON_PADDING);
      ReadArgs(parsed.get_object(), event);
    }
    trace_.events.push_back(std::move(event));
  }

  static bool ReadTime(od::value value, double most_us, int64_t& ns) {
    double us = 0.0;
    if (value.get_double().get(us) != simdjson::SUCCESS || !(us >= 0.0 && us <= most_us))
      return false;
    ns = std::llround(us * 1e3);
    return true;
  }

  const Interest interest_;
  Trace& trace_;
  std::string& place_;
  od::parser args_parser_;
};

Group ReadGroup(od::object object) {
  Group group;
  for (auto field : object) {
    const absl::string_view key = View(field.unescaped_key());
    od::value v = field.value();
    if (key == "pg_name") group.name = TextOrNone(v);
    if (key == "pg_desc") group.desc = TextOrNone(v);
    if (key != "ranks") continue;
    // An array; a text where the on-demand profiler wrote it.
    if (v.type() == od::json_type::string) group.ranks = ParseRanks(View(v.get_string()));
    if (v.type() != od::json_type::array) continue;
    for (od::value rank : v.get_array()) {
      const int64_t number = rank.get_int64();
      if (number < 0 || number > kMaxRank) Refuse(simdjson::NUMBER_OUT_OF_RANGE);
      group.ranks.push_back(static_cast<int32_t>(number));
    }
  }
  return group;
}

void ReadDistributed(od::object object, Trace& trace) {
  size_t ranks = 0;
  for (auto field : object) {
    const absl::string_view key = View(field.unescaped_key());
    od::value v = field.value();
    if (key == "rank") {
      trace.rank = v.get_int64();
      if (trace.rank < 0 || trace.rank > kMaxRank) Refuse(simdjson::NUMBER_OUT_OF_RANGE);
    }
    if (key != "pg_config") continue;
    for (od::value item : v.get_array()) {
      trace.groups.push_back(ReadGroup(item.get_object()));
      ranks += trace.groups.back().ranks.size();
      if (ranks > kMaxRanks) Refuse(simdjson::CAPACITY);
    }
  }
}

// Reads a whole document. Throws simdjson::simdjson_error; `place` then says where.
Trace ReadTrace(od::object document, Interest interest, std::string& place) {
  Trace trace;
  for (auto field : document) {
    const absl::string_view key = View(field.unescaped_key());
    place = absl::StrCat("\"", absl::CHexEscape(key.substr(0, 80)), "\"");
    od::value v = field.value();
    if (key == "baseTimeNanoseconds") {
      trace.base_ns = v.get_int64();
      if (trace.base_ns < 0 || trace.base_ns > kMaxBaseNs) Refuse(simdjson::NUMBER_OUT_OF_RANGE);
    }
    if (key == "host_name") trace.host = TextOrNone(v);
    if (key == "distributedInfo") ReadDistributed(v.get_object(), trace);
    if (key == "traceEvents") {
      trace.has_events = true;
      EventReader(interest, trace, place).ReadAll(v.get_array());
    }
  }
  return trace;
}

// `json` has SIMDJSON_PADDING bytes of room behind its end.
absl::StatusOr<Trace> Parse(const std::string& json, const std::string& source, Interest interest) {
  std::string place;
  od::parser parser;
  Trace trace;
  try {
    od::document document = parser.iterate(json.data(), json.size(), json.capacity() + 1);
    trace = ReadTrace(document.get_object(), interest, place);
  } catch (const simdjson::simdjson_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", place, place.empty() ? "" : ": ",
                                                   simdjson::error_message(error.error())));
  }
  if (trace.has_events) return trace;
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": no \"traceEvents\"; expected a Chrome trace of torch.profiler"));
}

}  // namespace

std::vector<int32_t> ParseRanks(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "[") || !absl::ConsumeSuffix(&text, "]")) return {};
  std::vector<int32_t> ranks;
  for (const absl::string_view piece : absl::StrSplit(text, ',')) {
    int32_t rank = 0;
    if (!absl::SimpleAtoi(piece, &rank) || rank < 0 || rank > kMaxRank) return {};
    ranks.push_back(rank);
  }
  return ranks;
}

absl::StatusOr<Trace> ParseTrace(absl::string_view bytes, const std::string& source,
                                 Interest interest, int64_t max_json_bytes) {
  const absl::StatusOr<std::string> json =
      UnpackBounded(bytes, max_json_bytes, simdjson::SIMDJSON_PADDING);
  if (json.ok()) return Parse(*json, source, interest);
  return absl::Status(json.status().code(), absl::StrCat(source, ": ", json.status().message()));
}

}  // namespace bucketd::torch_trace
