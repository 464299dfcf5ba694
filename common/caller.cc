#include "common/caller.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/errors.h"

namespace tessera {
namespace {

constexpr char kScheme[] = "tessera://";
constexpr char kOfJob[] = "worker/";

// As JobSpec.name.
bool IsJobName(absl::string_view name) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= 63 &&
         absl::ascii_isalnum(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), allowed);
}

std::string Names(int roles) {
  std::vector<absl::string_view> names;
  if ((roles & static_cast<int>(Role::kOperator)) != 0) names.emplace_back("operator");
  if ((roles & static_cast<int>(Role::kViewer)) != 0) names.emplace_back("viewer");
  if ((roles & static_cast<int>(Role::kWorker)) != 0) names.emplace_back("worker");
  return absl::StrJoin(names, " or ");
}

}  // namespace

bool Caller::MayTouch(absl::string_view job) const {
  return Has(Role::kWorker) &&
         (jobs.empty() || std::find(jobs.begin(), jobs.end(), job) != jobs.end());
}

Caller Anybody() { return {.authenticated = true, .roles = kEveryRole}; }

bool AddIdentity(absl::string_view uri, Caller* caller) {
  absl::string_view rest = uri;
  if (!absl::ConsumePrefix(&rest, kScheme)) return false;
  const bool any_job = caller->Has(Role::kWorker) && caller->jobs.empty();
  if (rest == "operator") {
    caller->roles |= static_cast<int>(Role::kOperator);
  } else if (rest == "viewer") {
    caller->roles |= static_cast<int>(Role::kViewer);
  } else if (rest == "worker") {
    caller->roles |= static_cast<int>(Role::kWorker);
    caller->jobs.clear();
  } else if (absl::ConsumePrefix(&rest, kOfJob) && IsJobName(rest)) {
    caller->roles |= static_cast<int>(Role::kWorker);
    if (!any_job) caller->jobs.emplace_back(rest);
  } else {
    return false;
  }
  absl::StrAppend(&caller->name, caller->name.empty() ? "" : " ", uri);
  return true;
}

absl::Status Authorize(const AccessRule& rule, const Caller& caller) {
  if (rule.anyone || (caller.roles & rule.roles) != 0) return absl::OkStatus();
  const std::string takes = absl::StrCat(rule.method, " takes the role ", Names(rule.roles));
  if (!caller.authenticated) {
    return WithReason(
        absl::UnauthenticatedError(absl::StrCat(
            takes, "; show a certificate (--tls_cert_file) or a token (--token_file)")),
        "NO_CREDENTIALS");
  }
  if (caller.roles == 0) {
    return WithReason(
        absl::PermissionDeniedError(absl::StrCat(
            takes, ", and the certificate has none: it needs a URI such as ", kScheme, "operator")),
        "NO_ROLE");
  }
  return WithReason(absl::PermissionDeniedError(absl::StrCat(takes, "; this is ", caller.name)),
                    "ROLE_DENIED");
}

absl::Status AuthorizeJob(const AccessRule& rule, const Caller& caller, absl::string_view job) {
  const int others = rule.roles & ~static_cast<int>(Role::kWorker);
  if (rule.anyone || (caller.roles & others) != 0 || caller.MayTouch(job)) return absl::OkStatus();
  const std::string which = job.empty() ? std::string("which names no job")
                                        : absl::StrCat("which is for the job ", job.substr(0, 63));
  return WithReason(absl::PermissionDeniedError(absl::StrCat(
                        rule.method, ", ", which, ": the certificate is for workers of ",
                        absl::StrJoin(caller.jobs, ", "), " alone (--job)")),
                    "OTHER_JOB");
}

}  // namespace tessera
