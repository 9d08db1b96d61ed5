#include <string>

#include "absl/strings/str_cat.h"
#include "client/ctl/command.h"

#include "passes/base/status_macros.h"
#include "passes/ir/canonical.h"
#include "passes/ir/normalize.h"

namespace bucketd::ctl {
namespace {

struct DigestArgs {
  std::string graph;
  bool json = false;
};

absl::Status Run(const DigestArgs& args) {
  ASSIGN_OR_RETURN(const CapturedGraph captured, ReadCapturedGraphFile(args.graph));
  ASSIGN_OR_RETURN(const NormalizedGraph normalized, Normalize(captured.graph));
  const std::string digest = ToHex(GraphDigest(normalized.graph));
  std::string text = absl::StrCat(digest, "  ", args.graph, "\n");
  if (args.json) {
    text = Json::Object({{"digest", digest},
                         {"name", captured.graph.name()},
                         {"nodes", normalized.graph.size()},
                         {"captured_nodes", captured.graph.size()},
                         {"collectives", normalized.graph.collectives().size()}})
               .Text();
  }
  Print(text);
  return absl::OkStatus();
}

}  // namespace

void AddDigestCommand(const Command& app) {
  const auto [command, args] = app.AddCommand<DigestArgs>(
      "digest", "Normalise a captured graph and print the digest that every rank must give", Run);
  AddGraphArgument(command, args.graph);
  AddJsonFlag(command, args.json);
  command.Footer(
      "Example: two ranks of one job disagree? Compare what they captured:\n"
      "  bucketctl digest rank0.json.gz; bucketctl digest rank3.json.gz");
}

}  // namespace bucketd::ctl
