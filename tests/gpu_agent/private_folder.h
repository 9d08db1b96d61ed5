#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace bucketd::agent {

// A folder of this user alone, deleted at the end.
class PrivateFolder {
 public:
  PrivateFolder() : path_((std::filesystem::temp_directory_path() / "ring.XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~PrivateFolder() { std::filesystem::remove_all(path_); }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace bucketd::agent
