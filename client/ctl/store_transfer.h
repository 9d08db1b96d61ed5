// What bucketctl store carries from one store to another: through a file, or directly.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace bucketd::ctl {

// Places are folders or URLs (store_place.h). Each prints what it did, as JSON if `json`.
// DATA_LOSS: damaged values were left out, everything else was carried.

struct ExportArgs {
  std::string from, file;
  std::string tenant;  // plans of this one alone; "": of all
  bool all = false;    // records too, and what holds the plans
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
  bool json = false;
};
absl::Status CopyStore(const CopyArgs& args);

}  // namespace bucketd::ctl
