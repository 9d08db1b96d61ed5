#include "tests/server/certificates.h"

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace bucketd {
namespace {

constexpr char kNewKey[] = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

}  // namespace

void Certificates::Run(const std::string& command) const {
  const std::string line = absl::StrCat("cd '", folder_, "' && ", command, " >out 2>&1");
  ASSERT_EQ(std::system(line.c_str()), 0)  // NOLINT(concurrency-mt-unsafe): one thread makes them
      << line << "\n"
      << std::ifstream(File("out")).rdbuf();
}

void Certificates::MakeAuthority(const std::string& name) const {
  Run(absl::StrCat("openssl req -x509 ", kNewKey, " -days 2 -subj '/CN=", name, "' -keyout ", name,
                   ".key -out ", name, ".pem"));
}

void Certificates::Make(const std::string& name, const Leaf& leaf) const {
  std::ofstream extensions(File(name + ".ext"));
  if (!leaf.names.empty()) extensions << "subjectAltName=" << leaf.names << "\n";
  if (!leaf.usage.empty()) extensions << "extendedKeyUsage=" << leaf.usage << "\n";
  extensions << "basicConstraints=CA:FALSE\n";
  extensions.close();
  Run(absl::StrCat("openssl req ", kNewKey, " -subj '/CN=", name, "' -keyout ", name,
                   ".new.key -out ", name, ".csr"));
  Run(absl::StrCat("openssl x509 -req -in ", name, ".csr -CA ", leaf.authority, ".pem -CAkey ",
                   leaf.authority, ".key -CAcreateserial -days ", leaf.days, " -extfile ", name,
                   ".ext -out ", name, ".new.pem"));
  Run(absl::StrCat("mv ", name, ".new.key ", name, ".key"));
  Run(absl::StrCat("mv ", name, ".new.pem ", name, ".pem"));
}

}  // namespace bucketd
