#include "passes/ir/bucket_key.h"

namespace bucketd {

absl::string_view Difference(const BucketKey& a, const BucketKey& b) {
  if (a.kind != b.kind) return "kind";
  if (a.group != b.group) return "group";
  if (a.reduce_op != b.reduce_op) return "reduce op";
  return a.dtype != b.dtype ? "dtype" : "";
}

}  // namespace bucketd
