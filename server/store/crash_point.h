// Marks the places where it matters what has been written, said or taken when a process ends. In
// bucketd they do nothing. A server that tests/server/crash_points.cc is linked into dies at the
// one that a test names, as by kill -9 (tests/faults/crash_table.py has what must hold then). What
// is linked decides, so no flag and no environment ends the product. Thread-safe.
#pragma once

namespace bucketd {

// `place`: "what: where in it", a literal that stands nowhere else. May be called with locks held.
void CrashPoint(const char* place);

}  // namespace bucketd
