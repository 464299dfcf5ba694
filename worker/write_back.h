// Writing whole parameters back after Session::Summon or SummonUnit: what FSDP does at the end of
// summon_full_params(writeback=True), one unit at a time.
//
//   TESSERA_ASSIGN_OR_RETURN(SummonedParameter weight, session.Summon("emb.weight", true));
//   ... change weight.bytes, alike on every rank ...
//   TESSERA_RETURN_IF_ERROR(WriteBack(session, {&weight, 1}));
//
// Between Summon with writeback and WriteBack no other call is legal (so they do not nest). After
// SummonUnit a program may call WriteBack or not, and may call it with values of its own.
#ifndef TESSERA_WORKER_WRITE_BACK_H_
#define TESSERA_WORKER_WRITE_BACK_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/session.h"

namespace tessera {

// Each rank puts its slices of the parameters, in their original dtype, into its shard of their
// unit; the parameters that are not among them, and the optimizer's state, stay as they are. All
// ranks call it, outside a step, with the same values and no use of the unit; waits. After a Summon
// with writeback `changed` may be empty: nothing has changed. INVALID_ARGUMENT: parameters of
// several units, one twice (also under a tied name), another dtype, shape or number of bytes; or
// values other than another rank's (names both). FAILED_PRECONDITION: inside a step; a lease of the
// unit is held; or it is not the unit that was summoned. NOT_FOUND: no such parameter.
// UNIMPLEMENTED: on GPUs. After a failure, of which every rank knows before any writes, nothing has
// been written.
absl::Status WriteBack(Session& session, absl::Span<const SummonedParameter> changed);

}  // namespace tessera

#endif  // TESSERA_WORKER_WRITE_BACK_H_
