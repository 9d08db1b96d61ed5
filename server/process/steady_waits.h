// Abseil's timed waits, and with them gRPC's timers, end at a time of the wall clock. Where that is
// set back by an hour while one waits, it waits an hour longer: a peer that was away is not
// connected to again, no deadline of a call comes. (gRPC 1.51, Abseil 20220623; both call `syscall`
// to wait.) This defines `syscall`, and has such waits end after the same time by a clock that
// nobody sets. What uses it has that in all its threads, from its start on.
#pragma once

namespace bucketd {

// Keeps the definition in the program.
void MakeWaitsSteady();

}  // namespace bucketd
