// A rank that computes on its GPU: trains the toy model for the job's steps and ends with an error
// where its parameters have other bits than plain loops give. gpu_job.json is the job.
//
//   tessera run --job=tests/measure/gpu_job.json --workers=1 -- bazel-bin/tests/measure/gpu_job
#include <cstdio>
#include <memory>

#include "common/process_env.h"
#include "common/status_macros.h"
#include "tests/session/gpu_steps.h"
#include "worker/device/cuda_api.h"
#include "worker/session.h"

namespace tessera {
namespace {

absl::Status Train(Session& session) {
  TESSERA_ASSIGN_OR_RETURN(const ProcessEnv env, ProcessEnv::Read());
  TESSERA_ASSIGN_OR_RETURN(const CudaApi* api, LoadCudaApi({.nccl_library = env.nccl_library,
                                                            .cuda_home = env.cuda_home}));
  TESSERA_RETURN_IF_ERROR(GpuTrain(*api, session, session.job().steps()));
  return session.Finish();
}

int Main() {
  Session::Options options;
  options.on_gpu = true;
  const absl::StatusOr<std::unique_ptr<Session>> session = Session::Join(std::move(options));
  absl::Status status = session.status();
  if (status.ok()) {
    status = Train(**session);
    if (!status.ok()) (*session)->Abort(status);
  }
  if (status.ok()) return 0;
  fprintf(stderr, "gpu_job: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace tessera

int main() { return tessera::Main(); }
