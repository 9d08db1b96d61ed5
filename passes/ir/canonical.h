// proto/GRAPH.md §4: the byte string that a graph's digest is the SHA-256 of. Stable across builds,
// machines and languages.
#pragma once

#include <string>

#include "passes/base/digest.h"
#include "passes/ir/graph.h"

namespace bucketd {

std::string CanonicalEncoding(const Graph& graph);
Digest GraphDigest(const Graph& graph);

}  // namespace bucketd
