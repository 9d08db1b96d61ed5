// One node of a captured-graph file, as it stands there: names not yet looked up.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "passes/base/types.h"
#include "simdjson.h"

namespace bucketd::fx_json {

// Views live as long as the parser's document.
struct Record {
  struct Tensor {
    absl::string_view dtype;
    size_t first_dim = 0, rank = 0;
    // Elements that are touched: dimensions of stride 0 count once. Capped, not overflowing.
    int64_t touched = 1;
  };
  struct Slot {
    NodeId node = kNoNode;
    absl::string_view kind, fqn;
  };
  struct Coll {
    absl::string_view kind, group, reduce_op, tag, param;
    int64_t group_size = -1;              // -1: not stated
    double alpha_us = -1.0, busbw = 0.0;  // neither is a cost: not stated
  };

  int64_t id = -1;  // -1: not stated
  absl::string_view name, op, module, desc_kind, fqn, direction;
  std::vector<NodeId> inputs, alias_of, mutates;
  std::vector<Tensor> tensors;
  std::vector<int64_t> dims;
  std::vector<Slot> slots;
  Coll coll;
  bool has_est_us = false, measured = false, has_slots = false, has_coll = false;
  bool is_view = false, is_compute = false, pointwise = false, symbolic = false, is_param = false;
  double est_us = 0.0;
  int64_t flops = 0, memory_bytes = 0, index = 0;
  int64_t wait_of = -1;  // -1: not stated
};

class RecordReader {
 public:
  // Overwrites the record. Throws simdjson::simdjson_error; field() then names the place. An error
  // of its own is for what JSON allows and a graph does not.
  absl::Status Read(simdjson::ondemand::object object, Record& record);
  absl::string_view field() const { return field_; }

 private:
  absl::Status ReadOutputs(simdjson::ondemand::value value, Record& record);

  absl::string_view field_;
  std::vector<int64_t> strides_;
};

}  // namespace bucketd::fx_json
