// The numbers of a cost profile, once: validation, fingerprint, files, messages and tables go by
// this list.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "passes/cost/profile.h"

namespace bucketd {

// A number of a profile: a field of the device model or of the profile itself.
struct ProfileNumber {
  struct Range {
    double low, high;
  };

  const char* name;  // as JSON and bucketd.v1 call the field
  double CostProfile::*own;
  double DeviceModel::*of_device;  // of one of the two
  Range range;

  bool is_device() const { return of_device != nullptr; }
  std::string FullName() const { return absl::StrCat(is_device() ? "device." : "", name); }
  const double& In(const CostProfile& profile) const {
    return is_device() ? profile.device.*of_device : profile.*own;
  }
  double& In(CostProfile& profile) const {
    return is_device() ? profile.device.*of_device : profile.*own;
  }
};

// In field order.
absl::Span<const ProfileNumber> ProfileNumbers();

}  // namespace bucketd
