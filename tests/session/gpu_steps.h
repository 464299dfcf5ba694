// Steps of the toy model on a GPU, whose memory they touch through CUDA alone, and what must come
// of them.
//
//   TESSERA_RETURN_IF_ERROR(GpuStep(*api, session));
#ifndef TESSERA_TESTS_SESSION_GPU_STEPS_H_
#define TESSERA_TESTS_SESSION_GPU_STEPS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tests/session/toy_model.h"
#include "worker/device/cuda_api.h"
#include "worker/session.h"

namespace tessera {

// The toy model on GPUs, trained with plain SGD: so that what it gives can be worked out exactly.
v1::JobSpec GpuJob(const std::string& param_dtype, const std::string& reduce_dtype);

// Forward and backward over all units, and the commit. Gradients (ToyGradient) are computed on the
// CPU and copied to and fro; parameters .c never get one.
absl::Status GpuStep(const CudaApi& api, Session& session);

// What `steps` GpuSteps make of `values`, one element after the other, rounded as NCCL does: each
// rank's gradient to reduce_dtype, the sum in rank order, the average.
ToyValues GpuExpected(ToyValues values, int ranks, int64_t steps, DType param_dtype,
                      DType reduce_dtype);

// Trains for `steps` steps and compares every parameter with GpuExpected. DATA_LOSS: some bit
// differs; names the parameter.
absl::Status GpuTrain(const CudaApi& api, Session& session, int64_t steps);

}  // namespace tessera

#endif  // TESSERA_TESTS_SESSION_GPU_STEPS_H_
