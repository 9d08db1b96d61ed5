// What a captured-graph file says above its nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/cost/costs.h"
#include "passes/ir/graph.h"
#include "simdjson.h"

namespace bucketd::fx_json {

inline absl::string_view View(std::string_view s) { return absl::string_view(s.data(), s.size()); }

struct FileGroup {
  std::vector<int64_t> ranks;
  std::string mesh_dim;
  int64_t size = -1;  // -1: as many as ranks
  int64_t lane = -1;  // -1: not stated
};

struct Header {
  std::string name, kind, device_type;
  bool stated =
      false;  // flags, directions, tags and bytes are as the nodes say (proto/GRAPH.md §1)
  int64_t schema = 1, world_size = 0, gpus_per_node = 0;
  std::vector<int64_t> mesh_shape;
  std::vector<std::string> mesh_dim_names;
  std::vector<MeshDim> mesh_dims;
  absl::flat_hash_map<std::string, FileGroup> groups;
  bool has_nodes = false;

  absl::Status Check() const;
};

// Reads every field but "nodes". Throws simdjson::simdjson_error; `field` then names the place.
Header ReadHeader(simdjson::ondemand::object object, std::string& field);

// Groups become roles (proto/GRAPH.md §2 step 2), in order of first use.
class Roles {
 public:
  explicit Roles(const Header& header) : header_(header) {}
  // The group called `name`, numbered by first use. INVALID_ARGUMENT if the file has no such group
  // or contradicts itself about it.
  absl::StatusOr<GroupId> Use(absl::string_view name);
  const Group& role(GroupId group) const { return used_[Index(group)].role; }
  // Of the header, and of the groups used.
  absl::StatusOr<Mesh> MakeMesh() const;

 private:
  absl::StatusOr<Group> MakeRole(const FileGroup& group);

  struct Used {
    std::string name;
    Group role;
  };
  const Header& header_;
  std::vector<Used> used_;
  absl::flat_hash_map<std::string, GroupId> index_;
  absl::flat_hash_map<std::string, int32_t> lanes_;
  int32_t unnamed_ = 0;
};

}  // namespace bucketd::fx_json
