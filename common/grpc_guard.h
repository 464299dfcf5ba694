// Stands before every method of every service of a server: no handler runs, and no request is
// parsed, before the guard has let the call pass. A method without an access rule cannot be served.
//
//   Guard guard({.rules = AccessRules(), .authenticator = authenticator});
//   TESSERA_ASSIGN_OR_RETURN(auto service, guard.Wrap("tessera.v1.JobService", &jobs));
//   builder.RegisterService(service.get());
//
// A call is refused with UNAUTHENTICATED, PERMISSION_DENIED (common/caller.h), RESOURCE_EXHAUSTED
// (common/limits.h), or INVALID_ARGUMENT where the request is no message of its kind.
//
// Of a stream that the client writes to, the guard sees no message: its handler asks
// AuthorizeJob and CheckMessage itself.
//
// Thread-safe. Outlives the services that it has wrapped, as do those that were wrapped.
#ifndef TESSERA_COMMON_GRPC_GUARD_H_
#define TESSERA_COMMON_GRPC_GUARD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/authenticator.h"
#include "common/caller.h"
#include "common/limits.h"
#include "grpcpp/grpcpp.h"

namespace tessera {

// What the other side of a call has shown.
Authenticator::Shown ShownBy(const grpc::ServerContextBase& context);

class Guard {
 public:
  struct Options {
    std::vector<AccessRule> rules = {};
    // Null: anybody may do everything. Not owned.
    const Authenticator* authenticator = nullptr;
    CallerLimits::Options limits = {};
    int64_t max_message_bytes = 64 << 20;
    MessageLimits message_limits = {};
  };
  // A call that was let pass.
  struct Pass {
    Caller caller;
    // To be called when the call is over.
    std::function<void()> end = [] {};
  };

  explicit Guard(Options options);

  // FAILED_PRECONDITION: a method has no rule, or a kind that the guard does not know.
  absl::StatusOr<std::unique_ptr<grpc::Service>> Wrap(const std::string& name,
                                                      grpc::Service* service) const;

  // The parts of it, for the wrapped services.
  const AccessRule* FindRule(const std::string& method) const;
  absl::StatusOr<Pass> Admit(const AccessRule& rule, const grpc::ServerContextBase& context,
                             bool stream) const;
  // `request`: of message `type`, serialized.
  absl::Status CheckRequest(const AccessRule& rule, const Caller& caller,
                            const google::protobuf::Descriptor& type,
                            grpc_byte_buffer* request) const;

 private:
  const Options options_;
  std::map<std::string, AccessRule> rules_;
  mutable CallerLimits limits_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_GRPC_GUARD_H_
