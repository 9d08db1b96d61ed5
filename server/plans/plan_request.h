// A GetPlan call after its checks: everything a plan depends on, in core types, and its key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "passes/base/digest.h"
#include "passes/cost/costs.h"
#include "passes/cost/profile.h"
#include "passes/pass/options.h"
#include "server/base/byte_room.h"
#include "server/base/shares.h"
#include "server/base/trace_context.h"
#include "server/graphs/graph_intake.h"
#include "server/store/audit.h"

namespace bucketd {

// Whoever asks.
struct Asker {
  std::string peer;              // host; what is shared is shared by it
  Actor by;                      // for the audit log
  bool tenant_is_known = false;  // by who asks, not only by what is said
  CallIds call;                  // what is done for it is logged under its name
};

struct PlanRequest {
  std::string tenant;
  Digest digest{};
  std::string graph_key;  // GraphKey(tenant, digest)
  Mesh mesh;
  PlanOptions options;
  std::string profile_as_asked;  // "", "NAME", "NAME@3", "NAME@latest"
  std::shared_ptr<const KeyedProfile> profile;
  std::string key;  // plan_key.h
  bool cached_only = false;
  std::unique_ptr<InlineGraph> graph;  // null: none came
  Asker asker;
  ByteRoom::Held held;  // what all this takes
};

// Whose it is, coarse to fine, where things are shared (base/shares.h).
Shares::Path ShareOf(const PlanRequest& request);

// Another profile, and the key that goes with it: for whoever knows better what "latest" was.
void SetProfile(PlanRequest& request, std::shared_ptr<const KeyedProfile> profile);

// A request holds so many times its key: the key has all of it as text and stands in two maps, and
// there is the request itself.
inline constexpr int64_t kHeldTimes = 4;
// Of a rank that a call speaks for, in the lists of whoever waits and in its scope's table.
inline constexpr int64_t kHeldOfRank = 64;
// Lets the request, which speaks for so many ranks, and a graph that rides along, each hold in
// `held` what it takes. OVERLOADED if that is more than there is room for.
absl::Status Hold(PlanRequest& request, size_t ranks, ByteRoom::Held held);

// Graphs belong to a tenant: nobody reads another one's by knowing its digest.
std::string GraphKey(absl::string_view tenant, const Digest& digest);
// DIGEST_MALFORMED unless 32 bytes.
absl::StatusOr<Digest> ReadDigest(absl::string_view field, absl::string_view bytes);

}  // namespace bucketd
