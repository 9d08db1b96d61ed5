#include "passes/ir/graph.h"

#include "absl/strings/str_cat.h"

namespace bucketd {
namespace {

template <typename T>
int64_t HeapBytes(const std::vector<T>& v) {
  return static_cast<int64_t>(v.capacity() * sizeof(T));
}

int64_t HeapBytes(const std::string& s) {
  static const size_t kInline = std::string().capacity();
  return s.capacity() > kInline ? static_cast<int64_t>(s.capacity() + 1) : 0;
}

int64_t HeapBytes(const Csr& lists) { return HeapBytes(lists.begin) + HeapBytes(lists.all); }

}  // namespace

absl::string_view Graph::node_name(NodeId n) const {
  if (node_name_begin_.empty()) return "";
  const int64_t from = node_name_begin_[Index(n)];
  const int64_t to = node_name_begin_[Index(n) + 1];
  return absl::string_view(node_names_)
      .substr(static_cast<size_t>(from), static_cast<size_t>(to - from));
}

std::string Graph::Describe(NodeId n) const {
  const absl::string_view name = node_name(n);
  return name.empty() ? absl::StrCat("%", n) : absl::StrCat("%", n, " (", name, ")");
}

int64_t OutputBytes(const Graph& graph, NodeId n) {
  int64_t bytes = 0;
  for (const TensorType& tensor : graph.outputs(n)) bytes += tensor.bytes;
  return bytes;
}

int64_t Graph::memory_footprint() const {
  int64_t bytes = HeapBytes(name_) + HeapBytes(kind_) + HeapBytes(op_) + HeapBytes(module_) +
                  HeapBytes(parameter_) + HeapBytes(inputs_) + HeapBytes(users_) +
                  HeapBytes(alias_of_) + HeapBytes(mutates_) + HeapBytes(output_begin_) +
                  HeapBytes(outputs_) + HeapBytes(dims_) + HeapBytes(flags_) + HeapBytes(flops_) +
                  HeapBytes(memory_bytes_) + HeapBytes(direction_) + HeapBytes(role_) +
                  HeapBytes(getitem_index_) + HeapBytes(collective_of_) + HeapBytes(collectives_) +
                  HeapBytes(groups_) + HeapBytes(slots_) + HeapBytes(strings_) +
                  HeapBytes(node_names_) + HeapBytes(node_name_begin_);
  for (const std::string& s : strings_) bytes += HeapBytes(s);
  for (const Group& g : groups_) bytes += HeapBytes(g.mesh_dim);
  return bytes;
}

}  // namespace bucketd
