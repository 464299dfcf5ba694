// Early return for absl::Status and absl::StatusOr.
//
//   TESSERA_RETURN_IF_ERROR(Check(x));
//   TESSERA_ASSIGN_OR_RETURN(const Plan plan, MakePlan(spec));
#ifndef TESSERA_COMMON_STATUS_MACROS_H_
#define TESSERA_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TESSERA_CONCAT_INNER(a, b) a##b
#define TESSERA_CONCAT(a, b) TESSERA_CONCAT_INNER(a, b)

#define TESSERA_RETURN_IF_ERROR(expression)                                 \
  do {                                                                      \
    if (absl::Status tessera_status = (expression); !tessera_status.ok()) { \
      return tessera_status;                                                \
    }                                                                       \
  } while (false)

#define TESSERA_ASSIGN_OR_RETURN(declaration, expression)                                   \
  TESSERA_ASSIGN_OR_RETURN_INNER(TESSERA_CONCAT(tessera_status_or_, __LINE__), declaration, \
                                 expression)

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration can't have them.
#define TESSERA_ASSIGN_OR_RETURN_INNER(temporary, declaration, expression) \
  auto temporary = (expression);                                           \
  if (!temporary.ok()) return std::move(temporary).status();               \
  declaration = *std::move(temporary)
// NOLINTEND(bugprone-macro-parentheses)

#endif  // TESSERA_COMMON_STATUS_MACROS_H_
