#include "passes/io/fx_json_record.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "passes/base/status_macros.h"

namespace bucketd::fx_json {
namespace {

namespace od = simdjson::ondemand;

absl::string_view View(std::string_view s) { return absl::string_view(s.data(), s.size()); }
absl::string_view Text(od::value value) { return View(value.get_string()); }
absl::string_view TextOrNull(od::value value) {
  return value.is_null() ? absl::string_view() : Text(value);
}

absl::string_view Unquoted(absl::string_view json) {
  const size_t end = json.find_last_not_of("\" \n");
  return absl::StripPrefix(json.substr(0, end == absl::string_view::npos ? 0 : end + 1), "\"");
}

// Ids that no graph can have become ones that the builder refuses.
NodeId ToNodeId(int64_t id) {
  constexpr int64_t kMost = std::numeric_limits<NodeId>::max();
  return static_cast<NodeId>(std::clamp<int64_t>(id, -1, kMost));
}

void ReadIds(od::value value, std::vector<NodeId>& ids) {
  for (od::value item : value.get_array()) ids.push_back(ToNodeId(item.get_int64()));
}

// Only a getitem's index is of interest: the second argument. Whose arguments they are is known
// once all fields are.
void ReadArgs(od::value value, Record& record) {
  size_t position = 0;
  for (od::value item : value.get_array()) {
    if (position++ == 1) record.index = item.get_int64();
  }
}

void ReadSlots(od::value value, Record& record) {
  record.has_slots = true;
  for (od::value item : value.get_array()) {
    Record::Slot slot;
    for (auto field : item.get_object()) {
      const absl::string_view key = View(field.unescaped_key());
      od::value v = field.value();
      // A slot without a node says null.
      if (key == "node" && !v.is_null()) {
        const int64_t node = v.get_int64();
        slot.node = ToNodeId(node < 0 ? std::numeric_limits<NodeId>::max() : node);
      }
      if (key == "kind") slot.kind = TextOrNull(v);
      if (key == "fqn") slot.fqn = TextOrNull(v);
    }
    record.slots.push_back(slot);
  }
}

void ReadColl(od::value value, Record& record) {
  record.has_coll = true;
  for (auto field : value.get_object()) {
    const absl::string_view key = View(field.unescaped_key());
    od::value v = field.value();
    Record::Coll& coll = record.coll;
    if (key == "kind") coll.kind = Text(v);
    if (key == "group") coll.group = Text(v);
    if (key == "group_size") coll.group_size = v.get_int64();
    if (key == "reduce_op") coll.reduce_op = TextOrNull(v);
    if (key == "tag") coll.tag = TextOrNull(v);
    if (key == "param") coll.param = TextOrNull(v);
    if (key == "alpha_us") coll.alpha_us = v.get_double();
    if (key == "busbw") coll.busbw = v.get_double();
  }
}

void ReadEstimate(od::value value, Record& record) {
  if (value.is_null()) return;
  record.est_us = value.get_double();
  record.has_est_us = true;
}

using FieldReader = void (*)(od::value value, Record& record);

struct FieldEntry {
  absl::string_view name;
  FieldReader read;
};

// By field; "outputs" has a reader of its own, since it can refuse what JSON allows.
constexpr FieldEntry kReaders[] = {
    {"id", [](od::value v, Record& r) { r.id = v.get_int64(); }},
    {"name", [](od::value v, Record& r) { r.name = Text(v); }},
    {"op", [](od::value v, Record& r) { r.op = Text(v); }},
    {"inputs", [](od::value v, Record& r) { ReadIds(v, r.inputs); }},
    {"est_us", ReadEstimate},
    {"measured", [](od::value v, Record& r) { r.measured = v.get_bool(); }},
    {"is_view", [](od::value v, Record& r) { r.is_view = v.get_bool(); }},
    {"alias_of", [](od::value v, Record& r) { ReadIds(v, r.alias_of); }},
    {"mutates", [](od::value v, Record& r) { ReadIds(v, r.mutates); }},
    {"flops", [](od::value v, Record& r) { r.flops = v.get_int64(); }},
    {"is_compute", [](od::value v, Record& r) { r.is_compute = v.get_bool(); }},
    {"coll", ReadColl},
    {"wait_of",
     [](od::value v, Record& r) { r.wait_of = v.is_null() ? -1 : int64_t{v.get_int64()}; }},
    {"module", [](od::value v, Record& r) { r.module = TextOrNull(v); }},
    {"desc_kind", [](od::value v, Record& r) { r.desc_kind = TextOrNull(v); }},
    {"is_param", [](od::value v, Record& r) { r.is_param = v.get_bool(); }},
    {"fqn", [](od::value v, Record& r) { r.fqn = TextOrNull(v); }},
    {"out_desc", ReadSlots},
    {"pointwise", [](od::value v, Record& r) { r.pointwise = v.get_bool(); }},
    {"symbolic", [](od::value v, Record& r) { r.symbolic = v.get_bool(); }},
    {"memory_bytes", [](od::value v, Record& r) { r.memory_bytes = v.get_int64(); }},
    {"direction", [](od::value v, Record& r) { r.direction = TextOrNull(v); }},
    {"index", [](od::value v, Record& r) { r.index = v.get_int64(); }}};

// Writers keep to one order of fields, so the search goes on where it ended: `at`.
FieldReader FindReader(absl::string_view name, size_t& at) {
  for (size_t tried = 0; tried < std::size(kReaders); ++tried) {
    const FieldEntry& entry = kReaders[at];
    at = (at + 1) % std::size(kReaders);
    if (entry.name == name) return entry.read;
  }
  return nullptr;
}

// Keeps the memory of the lists.
void Clear(Record& record) {
  Record empty;
  const auto keep = [](auto& from, auto& to) {
    from.clear();
    to = std::move(from);
  };
  keep(record.inputs, empty.inputs);
  keep(record.alias_of, empty.alias_of);
  keep(record.mutates, empty.mutates);
  keep(record.tensors, empty.tensors);
  keep(record.dims, empty.dims);
  keep(record.slots, empty.slots);
  record = std::move(empty);
}

int64_t Touched(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  int64_t product = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    // Strides that do not match are unknown: they are a matter of cost, not of meaning.
    const bool repeated = strides.size() == shape.size() && strides[i] == 0;
    const int64_t dim = repeated ? std::min<int64_t>(shape[i], 1) : shape[i];
    if (__builtin_mul_overflow(product, dim, &product)) return std::numeric_limits<int64_t>::max();
  }
  return product;
}

}  // namespace

absl::Status RecordReader::Read(od::object object, Record& record) {
  Clear(record);
  field_ = "";
  size_t at = 0;
  bool has_args = false;
  for (auto field : object) {
    field_ = View(field.unescaped_key());
    if (field_ == "outputs") {
      RETURN_IF_ERROR(ReadOutputs(field.value(), record));
    } else if (field_ == "args") {
      has_args = true;
    } else if (const FieldReader read = FindReader(field_, at); read != nullptr) {
      read(field.value(), record);
    }
  }
  if (!has_args || record.op != "getitem") return absl::OkStatus();
  object.reset();
  field_ = "args";
  ReadArgs(object.find_field("args"), record);
  return absl::OkStatus();
}

absl::Status RecordReader::ReadOutputs(od::value value, Record& record) {
  for (od::value item : value.get_array()) {
    Record::Tensor tensor;
    tensor.first_dim = record.dims.size();
    strides_.clear();
    for (auto field : item.get_object()) {
      const absl::string_view key = View(field.unescaped_key());
      od::value v = field.value();
      if (key == "dtype") tensor.dtype = Text(v);
      if (key == "shape") {
        for (od::value dim : v.get_array()) {
          if (od::json_type(dim.type()) != od::json_type::number) {
            return absl::InvalidArgumentError(
                absl::StrCat("a symbolic size, ",
                             absl::CHexEscape(Unquoted(View(dim.raw_json_token())).substr(0, 80)),
                             ", in a shape; sizes must be numbers"));
          }
          record.dims.push_back(dim.get_int64());
        }
      }
      if (key == "stride" && !v.is_null()) {
        for (od::value stride : v.get_array()) {
          const bool is_number = od::json_type(stride.type()) == od::json_type::number;
          strides_.push_back(is_number ? int64_t{stride.get_int64()} : 1);
        }
      }
    }
    tensor.rank = record.dims.size() - tensor.first_dim;
    tensor.touched = Touched(absl::MakeConstSpan(record.dims).subspan(tensor.first_dim), strides_);
    record.tensors.push_back(tensor);
  }
  return absl::OkStatus();
}

}  // namespace bucketd::fx_json
