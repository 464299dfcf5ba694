// Who may call what: one rule for each method of each service that the coordinator serves, health
// and reflection included. common/grpc_guard.h enforces them; a method without a rule keeps the
// server from starting.
#ifndef TESSERA_COORDINATOR_ACCESS_RULES_H_
#define TESSERA_COORDINATOR_ACCESS_RULES_H_

#include <vector>

#include "common/caller.h"

namespace tessera {

std::vector<AccessRule> AccessRules();

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_ACCESS_RULES_H_
