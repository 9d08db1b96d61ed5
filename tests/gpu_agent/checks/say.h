// What a check says: a line with its figure and its bound, which gpu_checks.sh gathers.
#pragma once

#include <cstdio>
#include <string>

namespace bucketd::agent {

inline void Line(const std::string& what, const std::string& figure, const std::string& bound,
                 const char* verdict) {
  std::printf("CHECK|%s|%s|%s|%s\n", what.c_str(), figure.c_str(), bound.c_str(), verdict);
  std::fflush(stdout);
}

}  // namespace bucketd::agent
