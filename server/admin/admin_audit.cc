// Who changed what, as operators see it.
#include <utility>
#include <vector>

#include "passes/base/status_macros.h"
#include "server/admin/admin.h"
#include "server/base/errors.h"

namespace bucketd {

absl::StatusOr<v1::ListAuditResponse> Admin::ListAudit(const v1::ListAuditRequest& request) const {
  ASSIGN_OR_RETURN(const int32_t limit, ListLimit(request.limit(), 100));
  v1::ListAuditResponse response;
  AuditSelection selection;
  if (request.has_tenant()) selection.tenant = request.tenant();
  selection.who = request.who();
  selection.what = request.what();
  if (request.since_ms() > 0) {
    selection.since = WallAt(request.since_ms());
  }
  const absl::StatusOr<std::vector<AuditEntry>> entries =
      parts_.store.ListAudit(selection, limit + 1);
  if (!entries.ok()) return WithReason(Reason::kStoreUnavailable, entries.status());
  for (const AuditEntry& entry : *entries) {
    if (response.entries_size() == limit) {
      response.set_truncated(true);
      break;
    }
    v1::AuditEntry& to = *response.add_entries();
    to.set_when_ms(MsOf(entry.when));
    to.set_who(entry.line.by.who);
    to.set_peer(entry.line.by.peer);
    to.set_tenant(entry.line.tenant);
    to.set_what(entry.line.what);
    to.set_subject(entry.line.subject);
    to.set_before(entry.line.before);
    to.set_after(entry.line.after);
  }
  return response;
}

}  // namespace bucketd
