#include "server/identity/tls_files.h"

#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "passes/base/status_macros.h"
#include "server/identity/openssl_free.h"
#include "server/identity/small_file.h"

namespace bucketd {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 20;

using BioPtr = std::unique_ptr<BIO, OpenSslFree>;
using X509Ptr = std::unique_ptr<X509, OpenSslFree>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpenSslFree>;

BioPtr Reading(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::Status Refused(const std::string& path, absl::string_view why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

// Asks nobody for a passphrase.
int NoPassphrase(char*, int, int, void*) { return 0; }

// All certificates of the file, one at least.
absl::StatusOr<std::vector<X509Ptr>> CertificatesIn(const std::string& text,
                                                    const std::string& path) {
  ERR_clear_error();
  std::vector<X509Ptr> certificates;
  const BioPtr pem = Reading(text);
  while (true) {
    X509Ptr certificate(PEM_read_bio_X509(pem.get(), nullptr, NoPassphrase, nullptr));
    if (certificate == nullptr) break;
    certificates.push_back(std::move(certificate));
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (!at_end) {
    return Refused(path, absl::StrCat("certificate ", certificates.size() + 1, " is damaged"));
  }
  ERR_clear_error();
  if (!certificates.empty()) return certificates;
  return Refused(path, "expected a certificate in PEM (-----BEGIN CERTIFICATE-----)");
}

absl::Status CheckIsCurrent(const X509* certificate, const std::string& path) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0) {
    return Refused(path, "the certificate has expired");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) >= 0) {
    return Refused(path, "the certificate is not valid yet");
  }
  return absl::OkStatus();
}

int64_t UnixSeconds(const ASN1_TIME* time) {
  tm parts{};
  return time != nullptr && ASN1_TIME_to_tm(time, &parts) == 1 ? int64_t{timegm(&parts)} : 0;
}

}  // namespace

absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsPaths& paths) {
  TlsFiles files;
  ASSIGN_OR_RETURN(files.certificate, ReadSmallFile(paths.certificate, kMaxBytes));
  ASSIGN_OR_RETURN(files.key, ReadSmallFile(paths.key, kMaxBytes));
  ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain,
                   CertificatesIn(files.certificate, paths.certificate));
  if (!paths.client_ca.empty()) {
    ASSIGN_OR_RETURN(files.client_ca, ReadSmallFile(paths.client_ca, kMaxBytes));
    RETURN_IF_ERROR(CertificatesIn(files.client_ca, paths.client_ca).status());
  }
  X509* const certificate = chain.front().get();
  RETURN_IF_ERROR(CheckIsCurrent(certificate, paths.certificate));
  files.expires_unix_s = UnixSeconds(X509_get0_notAfter(certificate));
  const KeyPtr key(
      PEM_read_bio_PrivateKey(Reading(files.key).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return Refused(paths.key, "expected a private key in PEM, not encrypted");
  }
  if (X509_check_private_key(certificate, key.get()) != 1) {
    return Refused(paths.key, absl::StrCat("the key does not belong to the certificate in ",
                                           paths.certificate));
  }
  return files;
}

}  // namespace bucketd
