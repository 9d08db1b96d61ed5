// Who changed what: lines that are written in the transaction of the change itself. README.md says
// which changes have one, and how long lines are kept.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

#include "server/store/wall_time.h"

namespace bucketd {

// The tenant of what belongs to all of them; "" is the default one.
inline constexpr char kAllTenants[] = "*";

struct Actor {
  std::string who;                   // its identity; "": nobody was asked for one
  std::string peer;                  // the host that the call came from; "": none did
  std::string tenant = kAllTenants;  // that it belongs to
  // By a call that whoever asks for plans may make: no operator's. Not a part of lines; it says
  // what they are called.
  bool in_passing = false;
};
// The server itself, when nobody has called.
Actor ServerItself();

struct AuditLine {
  Actor by;
  std::string tenant;  // whose state has changed
  std::string what;    // "pin", "release", "promote"
  std::string subject;
  std::string before, after;  // "": there was nothing, or is nothing any more
};

struct AuditEntry {
  int64_t id = 0;      // never given twice, in any store
  int64_t number = 0;  // later lines of one store have greater ones
  WallTime when;
  AuditLine line;
};

// All that are given must hold.
struct AuditSelection {
  std::optional<std::string> tenant;
  std::string who;  // part of the identity, or of the host
  std::string what;
  std::optional<WallTime> since;
  std::optional<int64_t> before_number;  // for the next page
};

struct AuditRetention {
  // Of what calls cause, and as many of what operators do (audit_trim.h).
  int64_t lines = 100'000;
  std::chrono::milliseconds age{std::chrono::hours(24 * 90)};  // 0: any
};

// What a line of an eviction says after it.
inline constexpr char kEvictedWords[] = " plans gone";
inline std::string EvictedText(int64_t plans) { return std::to_string(plans) + kEvictedWords; }

// What is kept of each text of a line.
inline constexpr size_t kAuditTextBytes = 1024;
inline absl::string_view AuditText(absl::string_view text) {
  return text.substr(0, kAuditTextBytes);
}

}  // namespace bucketd
