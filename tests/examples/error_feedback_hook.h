// A communication hook of one's own: gradients are sent in bfloat16, and what the rounding leaves
// out is kept and added to the next step's. Over many steps nothing is lost, where plain
// compression loses every part of a gradient that is too small for its exponent.
//
//   TESSERA_RETURN_IF_ERROR(RegisterCommunicationHook(*session, ErrorFeedbackHook()));
//
// For sharded units. Keeps a copy of all gradients, in float32, in the memory of the process.
#ifndef TESSERA_TESTS_EXAMPLES_ERROR_FEEDBACK_HOOK_H_
#define TESSERA_TESTS_EXAMPLES_ERROR_FEEDBACK_HOOK_H_

#include <map>
#include <memory>
#include <vector>

#include "common/status_macros.h"
#include "worker/communication_hooks.h"

inline tessera::CommunicationHook ErrorFeedbackHook() {
  using tessera::FlatTensor;
  // By unit: what this rank has not sent yet. A hook is copied, so it is shared.
  const auto unsent = std::make_shared<std::map<int, std::vector<float>>>();
  const auto run = [unsent](tessera::CommunicationGroup& group, const FlatTensor& gradient,
                            const FlatTensor* output) -> absl::Status {
    if (output == nullptr) return absl::FailedPreconditionError("error_feedback is for shards");
    std::vector<float>& error = (*unsent)[group.unit()];
    error.resize(gradient.numel);
    // error += gradient; sent = bfloat16(error); error -= sent
    const FlatTensor kept = {error.data(), gradient.numel, tessera::v1::FLOAT32};
    tessera::AddElements(gradient, kept);
    std::vector<uint16_t> sent(gradient.numel);
    const FlatTensor low = {sent.data(), gradient.numel, tessera::v1::BFLOAT16};
    tessera::CastElements(kept, low);
    for (int64_t i = 0; i < gradient.numel; ++i) {
      error[i] -= static_cast<float>(tessera::ElementOf(sent.data(), low.dtype, i));
    }
    TESSERA_RETURN_IF_ERROR(group.ReduceScatter(low, *output));
    // The whole division after the sum: no factor of it is lost to rounding before.
    tessera::DivideElements(*output, group.pre_divide_factor() * group.post_divide_factor());
    return absl::OkStatus();
  };
  return {.name = "error_feedback", .low_precision = false, .run = run};
}

#endif  // TESSERA_TESTS_EXAMPLES_ERROR_FEEDBACK_HOOK_H_
