// An [[issuer]] entry of the identities file.
#pragma once

#include <string>

#include "passes/base/toml.h"
#include "server/identity/issuer.h"
#include "server/identity/toml_problems.h"

namespace bucketd {

// What is wrong goes to `problems`. `folder` is where the identities file is.
Issuer ReadIssuer(const toml::table& table, const std::string& folder, TomlProblems& problems);

}  // namespace bucketd
