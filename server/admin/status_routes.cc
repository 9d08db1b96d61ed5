#include "server/admin/status_routes.h"

#include "passes/io/message_json.h"
#include "server/admin/status_page.h"

namespace bucketd {
namespace {

using Query = std::multimap<std::string, std::string>;

bool Has(const Query& query, const char* name, const char* value) {
  const auto found = query.find(name);
  return found != query.end() && found->second == value;
}

}  // namespace

std::vector<SidePort::Page> StatusPages(std::function<v1::GetStatusResponse()> status) {
  const auto answer = [status = std::move(status)](const Query& query) -> SidePort::Answer {
    const v1::GetStatusResponse now = status();
    if (Has(query, "format", "json")) return {MessageJson(now), "application/json"};
    return {.body = StatusPage(now), .refresh_seconds = Has(query, "refresh", "5") ? 5 : 0};
  };
  return {{"/statusz", answer}, {"/", answer}};
}

}  // namespace bucketd
