#include "coordinator/member_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tessera {

absl::Status MemberCheck::Check(const v1::AttendRequest& message) const {
  TESSERA_RETURN_IF_ERROR(CheckMessage(message, options_.message_limits));
  if (!message.has_join_host() && !message.has_join_rank()) return absl::OkStatus();
  if (const int64_t members = *members_; members > options_.max_members) {
    return LimitExceeded("max_members", options_.max_members,
                         absl::StrCat("this would be member ", members));
  }
  const AccessRule rule = {.method = "/tessera.v1.MembershipService/Attend",
                           .roles = static_cast<int>(Role::kWorker)};
  if (message.has_join_rank()) {
    return AuthorizeJob(rule, options_.caller, message.join_rank().job());
  }
  const v1::JoinHost& host = message.join_host();
  if (!host.serving_job().empty()) {
    TESSERA_RETURN_IF_ERROR(AuthorizeJob(rule, options_.caller, host.serving_job()));
  }
  // Bound to no job, it could be given any.
  return AuthorizeJob(rule, options_.caller, host.job());
}

}  // namespace tessera
