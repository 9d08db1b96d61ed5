// What bucketctl store carries from one store to another: through a file, or directly.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace bucketd::ctl {

// Places are folders or URLs (store_place.h). Each prints what it did, as JSON if `json`.
// DATA_LOSS: damaged values were left out, everything else was carried.

struct ExportArgs {
  std::string from, file;
  std::optional<std::string> tenant;  // plans of this one alone; "": the default one
  bool all = false;                   // records too, and what holds the plans
  bool json = false;
};
absl::Status ExportStore(const ExportArgs& args);

struct ImportArgs {
  std::string file, to;
  bool json = false;
};
// All of the file is checked before anything is written.
absl::Status ImportStore(const ImportArgs& args);

struct CopyArgs {
  std::string from, to;
  bool replace = false;  // records that are there already and differ
  bool json = false;
};
absl::Status CopyStore(const CopyArgs& args);

}  // namespace bucketd::ctl
