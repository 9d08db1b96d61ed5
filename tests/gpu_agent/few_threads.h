// What a trainer meets whose processes and threads are used up.
#pragma once

namespace bucketd::agent {

// The calling thread can start so many more threads until this goes. One at a time.
class FewThreads {
 public:
  explicit FewThreads(int more);
  ~FewThreads();
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;
};

}  // namespace bucketd::agent
