// What an address may name: one server, several that share a store, or a name that stands for
// several; and the order in which a call asks them.
//
//   planner:9460   [::1]:9460   unix:/run/bucketd     one
//   a:9460,b:9460                                     several: each call goes to one of them
//   dns:///planners:9460                              all that the name stands for, looked up again
//                                                     as that changes; their certificates name
//                                                     `planners`
//
// The order is that of rendezvous hashing: by the SHA-256 of what the call is about and of the
// server's address. So all ranks of a job ask the same server first and the same one next, however
// their lists are sorted; jobs spread over the servers; and where one goes, nothing moves but what
// was asked there. client/python/bucketd/addresses.py is the same for Python.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace bucketd::client {

// One server: where it is, and whom its certificate has to name ("": the host of `target`).
struct ServerAddress {
  std::string target;
  std::string name = {};

  friend bool operator==(const ServerAddress&, const ServerAddress&) = default;
};

// The addresses that `text` lists. INVALID_ARGUMENT names the one that is invalid, or is there
// twice.
absl::StatusOr<std::vector<std::string>> ParseAddresses(absl::string_view text);

// What ParseAddresses says of it, "" if nothing: for command lines (Flag::Checked).
std::string WrongInAddresses(const std::string& text);

// Whether it stands for servers that have to be looked up.
bool IsName(absl::string_view address);

// The servers that a dns:/// address stands for now. UNAVAILABLE{UNREACHABLE} if nobody says so
// within `patience`.
absl::StatusOr<std::vector<ServerAddress>> LookUp(const std::string& address,
                                                  std::chrono::milliseconds patience);

// Whom a call about `about` asks first, whom next, and so on. "": as they are listed.
std::vector<ServerAddress> InOrder(std::vector<ServerAddress> servers, absl::string_view about);

}  // namespace bucketd::client
