// How NCCL's profiler, loggers and debuggers know communicators of ours from others of the process.
#pragma once

namespace bucketd::agent {

// What their names begin with.
inline constexpr char kOwnCommunicators[] = "bucketd ";

}  // namespace bucketd::agent
