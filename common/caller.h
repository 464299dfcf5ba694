// Who calls, and what a caller may do. Pure.
//
//   Caller caller;
//   AddIdentity("tessera://worker/gpt", &caller);        from a certificate
//   caller.Has(Role::kWorker);  caller.MayTouch("gpt");  true, true
//   caller.MayTouch("other");                            false
//
// Identities are URIs among a certificate's subject alternative names:
//   tessera://operator      everything that the client does: creates, reads, drains, cancels
//   tessera://viewer        reads jobs, plans and stats
//   tessera://worker        joins any job, and does there what agents and ranks do; nothing else
//   tessera://worker/JOB    the same in the job JOB alone
// A certificate may have several. A tessera:// URI that is none of these gives nothing.
#ifndef TESSERA_COMMON_CALLER_H_
#define TESSERA_COMMON_CALLER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Bits, so that a rule and a caller have sets of them.
enum class Role : int { kOperator = 1, kViewer = 2, kWorker = 4 };
inline constexpr int kEveryRole = 7;

struct Caller {
  // False: it has shown neither a certificate nor a token.
  bool authenticated = false;
  int roles = 0;
  // The only jobs that the role worker is for; none: every job.
  std::vector<std::string> jobs = {};
  // For messages and for counting: the identities, "token", or "".
  std::string name = "";

  bool Has(Role role) const { return (roles & static_cast<int>(role)) != 0; }
  // As a worker.
  bool MayTouch(absl::string_view job) const;
};

// Whoever calls a server that asks for nothing.
Caller Anybody();

// False: `uri` is no identity, and the caller is as before.
bool AddIdentity(absl::string_view uri, Caller* caller);

// Several methods of one service, or one of them.
struct AccessRule {
  // "/PACKAGE.SERVICE/METHOD".
  std::string method;
  // Any of these roles suffices.
  int roles = 0;
  // Also a caller that has shown nothing.
  bool anyone = false;
  // For the role worker: the field of the request that names the job; "": none.
  std::string job_field = "";
};

// UNAUTHENTICATED (NO_CREDENTIALS), PERMISSION_DENIED (NO_ROLE, ROLE_DENIED): says what it takes.
absl::Status Authorize(const AccessRule& rule, const Caller& caller);

// PERMISSION_DENIED (OTHER_JOB): the caller is a worker of other jobs, and nothing but a worker.
absl::Status AuthorizeJob(const AccessRule& rule, const Caller& caller, absl::string_view job);

}  // namespace tessera

#endif  // TESSERA_COMMON_CALLER_H_
