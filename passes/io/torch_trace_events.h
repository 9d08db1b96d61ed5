// The events of a torch.profiler trace that have to do with collectives, as they stand there.
// Internal to passes/io.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "simdjson.h"

namespace bucketd::torch_trace {

// Tensors among an event's "Input Dims".
struct Shapes {
  bool stated = false;
  int32_t tensors = 0;   // that are no list's
  int64_t elements = 0;  // of those; -1: absurdly many
  int32_t listed = 0;    // tensors of the first list; 0: no list
  std::string dtype;     // "Input type" of the first
  bool mixed = false;    // the others have another
};

struct Event {
  // kCall: an op of c10d; kFunctional: one of _c10d_functional, which calls one of c10d.
  enum class Kind { kKernel, kComms, kGlooSpan, kCall, kFunctional };
  Kind kind = Kind::kKernel;
  std::string name;
  int64_t index = 0;    // in traceEvents
  int64_t thread = -1;  // -1: not a number
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  int64_t external_id = -1;
  // What record_param_comms says; `collective` is "" where nothing does.
  std::string collective, dtype, group_name, group_desc, group_ranks, in_split, out_split;
  int64_t in_elements = -1, out_elements = -1, group_size = -1, sequence = -1;
  Shapes shapes;
};

struct Group {
  std::string name, desc;
  std::vector<int32_t> ranks;  // as stated; empty if not in full
};

struct Trace {
  bool has_events = false;
  int64_t rank = -1;    // none
  int64_t base_ns = 0;  // of every event's start
  std::string host;
  std::vector<Group> groups;
  std::vector<Event> events;
};

// "[0, 1, 2]"; empty where the text is anything else, such as a list that was cut short.
std::vector<int32_t> ParseRanks(absl::string_view text);

// Reads a whole document. Throws simdjson::simdjson_error; `place` then says where.
Trace ReadTrace(simdjson::ondemand::object document, std::string& place);

}  // namespace bucketd::torch_trace
