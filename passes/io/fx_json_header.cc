#include "passes/io/fx_json_header.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "passes/base/status_macros.h"

namespace bucketd::fx_json {
namespace {

namespace od = simdjson::ondemand;

constexpr int64_t kMaxSize = int64_t{1} << 24;

std::string Text(od::value value) { return std::string(std::string_view(value.get_string())); }

std::string TextOrNull(od::value value) { return value.is_null() ? "" : Text(value); }

std::vector<int64_t> Numbers(od::value value) {
  std::vector<int64_t> numbers;
  for (od::value item : value.get_array()) numbers.push_back(item.get_int64());
  return numbers;
}

// Untrusted sizes: what does not fit is refused later, by whoever checks the range.
int32_t Clamped(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, -1, kMaxSize + 1));
}

FileGroup ReadGroup(od::object object) {
  FileGroup group;
  for (auto field : object) {
    const absl::string_view key = View(field.unescaped_key());
    od::value value = field.value();
    if (key == "ranks") group.ranks = Numbers(value);
    if (key == "mesh_dim") group.mesh_dim = TextOrNull(value);
    if (key == "size") group.size = value.get_int64();
    if (key == "lane") group.lane = value.get_int64();
  }
  if (group.size < 0) group.size = static_cast<int64_t>(group.ranks.size());
  return group;
}

MeshDim ReadMeshDim(od::object object) {
  MeshDim dim;
  for (auto field : object) {
    const absl::string_view key = View(field.unescaped_key());
    od::value value = field.value();
    if (key == "name") dim.name = Text(value);
    if (key == "size") dim.size = Clamped(value.get_int64());
    if (key == "ranks_per_node") dim.ranks_per_node = Clamped(value.get_int64());
    if (key == "link_class") dim.link_class = TextOrNull(value);
  }
  return dim;
}

void ReadField(absl::string_view key, od::value value, Header& header) {
  if (key == "name") header.name = Text(value);
  if (key == "schema") header.schema = value.get_int64();
  if (key == "kind") header.kind = Text(value);
  if (key == "device_type") header.device_type = TextOrNull(value);
  if (key == "stated") header.stated = int64_t{value.get_int64()} == 1;
  if (key == "world_size") header.world_size = value.get_int64();
  if (key == "gpus_per_node") header.gpus_per_node = value.get_int64();
  if (key == "mesh_shape") header.mesh_shape = Numbers(value);
  if (key == "mesh_dim_names") {
    for (od::value item : value.get_array()) header.mesh_dim_names.push_back(Text(item));
  }
  if (key == "mesh_dims") {
    for (od::value item : value.get_array()) header.mesh_dims.push_back(ReadMeshDim(item));
  }
  if (key == "groups") {
    for (auto group : value.get_object()) {
      header.groups[View(group.unescaped_key())] = ReadGroup(group.value());
    }
  }
}

// Ranks in the node of the first one; 0: all of them.
int32_t RanksPerNode(absl::Span<const int64_t> ranks, int64_t gpus_per_node) {
  if (ranks.empty() || gpus_per_node <= 0) return 0;
  const int64_t node = ranks[0] / gpus_per_node;
  const auto here = std::count_if(ranks.begin(), ranks.end(),
                                  [&](int64_t r) { return r / gpus_per_node == node; });
  return here == static_cast<std::ptrdiff_t>(ranks.size()) ? 0 : static_cast<int32_t>(here);
}

}  // namespace

Header ReadHeader(od::object object, std::string& place) {
  Header header;
  for (auto field : object) {
    const absl::string_view key = View(field.unescaped_key());
    place.assign(key.data(), key.size());
    if (key == "nodes") {
      header.has_nodes = true;
      continue;
    }
    ReadField(key, field.value(), header);
  }
  place.clear();
  return header;
}

absl::Status Header::Check() const {
  const auto bad = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat("captured graph: ", parts...));
  };
  if (schema != 1) return bad("schema ", schema, ": expected 1");
  if (!has_nodes) return bad("expected an object with a list \"nodes\"");
  if (kind != "fw" && kind != "bw" && kind != "joint") {
    return bad("kind \"", absl::CHexEscape(kind), "\": expected fw, bw or joint");
  }
  if (mesh_shape.size() != mesh_dim_names.size()) {
    return bad("mesh_shape has ", mesh_shape.size(), " sizes, mesh_dim_names ",
               mesh_dim_names.size(), " names");
  }
  const auto in_range = [](int64_t n) { return n >= 1 && n <= kMaxSize; };
  if (!std::all_of(mesh_shape.begin(), mesh_shape.end(), in_range)) {
    return bad("mesh_shape: a size is not in 1..", kMaxSize);
  }
  for (const auto& dim : mesh_dims) {
    if (dim.name.empty() || !in_range(dim.size) || dim.ranks_per_node < 0) {
      return bad("mesh_dims: expected a name, and a size in 1..", kMaxSize,
                 ", and no negative "
                 "ranks_per_node");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GroupId> Roles::Use(absl::string_view name) {
  if (const auto it = index_.find(name); it != index_.end()) return it->second;
  const auto it = header_.groups.find(name);
  if (it == header_.groups.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file has no group \"", absl::CHexEscape(name), "\""));
  }
  ASSIGN_OR_RETURN(Group role, MakeRole(it->second));
  const auto group = static_cast<GroupId>(used_.size());
  index_.emplace(name, group);
  used_.push_back({std::string(name), std::move(role)});
  return group;
}

absl::StatusOr<Group> Roles::MakeRole(const FileGroup& group) {
  Group role;
  role.size = Clamped(group.size);
  role.mesh_dim = group.mesh_dim;
  if (!group.ranks.empty() && group.size != static_cast<int64_t>(group.ranks.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group of size ", group.size, " has ", group.ranks.size(), " ranks"));
  }
  std::vector<int64_t> ranks = group.ranks;
  std::sort(ranks.begin(), ranks.end());
  if (!ranks.empty() && ranks[0] < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group has rank ", ranks[0], "; expected none below 0"));
  }
  if (const auto twice = std::adjacent_find(ranks.begin(), ranks.end()); twice != ranks.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group has rank ", *twice, " twice; expected each once"));
  }
  if (role.mesh_dim.empty()) {
    const bool all = group.size == header_.world_size;
    role.mesh_dim = all ? "world" : absl::StrCat("group", unnamed_++);
  }
  if (header_.stated && group.lane >= 0) {
    role.lane = Clamped(group.lane);
  } else {
    role.lane = lanes_[role.mesh_dim]++;
  }
  return role;
}

absl::StatusOr<Mesh> Roles::MakeMesh() const {
  Mesh mesh;
  if (!header_.device_type.empty()) mesh.device_type = header_.device_type;
  mesh.dims = header_.mesh_dims;
  if (!mesh.dims.empty()) return mesh;
  int64_t stride = 1;
  for (size_t i = header_.mesh_shape.size(); i-- > 0;) {
    // Row-major: the last dimension's groups are neighbours. Counted, not listed: sizes are large.
    const int64_t size = header_.mesh_shape[i];
    const int64_t gpus = header_.gpus_per_node;
    const int64_t here = gpus <= 0 ? size : std::min(size, 1 + (gpus - 1) / stride);
    MeshDim dim{header_.mesh_dim_names[i], Clamped(size),
                here == size ? 0 : Clamped(std::max<int64_t>(here, 1)), ""};
    mesh.dims.push_back(std::move(dim));
    if (stride <= kMaxSize) stride *= size;
  }
  std::reverse(mesh.dims.begin(), mesh.dims.end());
  absl::flat_hash_map<std::string, size_t> index;
  for (size_t i = 0; i < mesh.dims.size(); ++i) index.emplace(mesh.dims[i].name, i);
  for (const Used& used : used_) {
    const FileGroup& group = header_.groups.at(used.name);
    const int32_t here = RanksPerNode(group.ranks, header_.gpus_per_node);
    const auto [at, is_new] = index.emplace(used.role.mesh_dim, mesh.dims.size());
    if (is_new) mesh.dims.push_back({used.role.mesh_dim, used.role.size, here, ""});
    MeshDim& dim = mesh.dims[at->second];
    if (dim.size != used.role.size) {
      return absl::InvalidArgumentError(
          absl::StrCat("group \"", absl::CHexEscape(used.name), "\" has ", used.role.size,
                       " ranks, but mesh "
                       "dimension \"",
                       absl::CHexEscape(dim.name), "\" has ", dim.size));
    }
    if (!group.ranks.empty()) dim.ranks_per_node = here;
  }
  return mesh;
}

}  // namespace bucketd::fx_json
