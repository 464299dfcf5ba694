// Checks on a GPU what cannot be checked without one: the kernels against the CPU's loops, and jobs
// of one rank (and of two where there are two GPUs) through CUDA and NCCL. Exits with 0: all as it
// should be; 1: something is not; 3: there is no GPU to check on.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/process_env.h"
#include "common/status_macros.h"
#include "tests/measure/gpu_check_kernels.h"
#include "tests/session/gpu_ranks.h"
#include "worker/device/cuda_device.h"
#include "worker/memory_file.h"

namespace tessera {
namespace {

constexpr int64_t kMeasured = int64_t{1} << 26;  // elements
constexpr int kFailed = 1;
constexpr int kUnavailable = 3;

class Report {
 public:
  void Add(const std::string& what, bool good, const std::string& more = "") {
    ++checks_;
    if (!good) ++failures_;
    if (!good || !more.empty())
      printf("gpu_check: %s: %s%s\n", what.c_str(), good ? "as expected" : "FAILED", more.c_str());
  }
  int Finish() const {
    printf("gpu_check: %d checks, %d failed\n", checks_, failures_);
    return failures_ == 0 ? 0 : kFailed;
  }

 private:
  int checks_ = 0;
  int failures_ = 0;
};

absl::Status CheckGpu(const CudaApi& api, Report& report) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<CudaStream> stream,
                           CudaStream::Create({.api = &api, .name = "check"}));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<KernelCheck> checks,
                           CheckKernels(api, *stream, kBeyondTheGrid));
  for (const KernelCheck& check : checks) report.Add(check.name, check.equal);
  printf("gpu_check: %zu kernels compared bit for bit\n", checks.size());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> figures,
                           MeasureKernels(api, *stream, kMeasured));
  for (const std::string& figure : figures) printf("gpu_check: %s\n", figure.c_str());
  return absl::OkStatus();
}

// A rank's memory file is sealed and shared; kernels have to reach it all the same.
absl::Status CheckMemoryFile(const CudaApi& api, Report& report) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<CudaStream> stream,
                           CudaStream::Create({.api = &api, .name = "check"}));
  TESSERA_ASSIGN_OR_RETURN(const MemoryFile file, MemoryFile::Create("tessera-check", 1 << 20));
  TESSERA_ASSIGN_OR_RETURN(const MemoryMapping mapping, file.Map());
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<RegisteredMemory> registered,
                           RegisteredMemory::Create(&api, 0, mapping.data(), mapping.bytes()));
  float* const values = reinterpret_cast<float*>(mapping.data());
  for (int i = 0; i < 1000; ++i) values[i] = static_cast<float>(i);
  const CastRun halves = {.in = values, .numel = 1000, .divide = 2, .out = values + 1000};
  TESSERA_RETURN_IF_ERROR(stream->Error(api.cast(halves, stream->handle()), "the cast kernel"));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<CudaEvent> done, CudaEvent::Record(*stream));
  TESSERA_RETURN_IF_ERROR(done->Wait());
  bool equal = true;
  for (int i = 0; i < 1000; ++i) equal = equal && values[1000 + i] == static_cast<float>(i) / 2;
  report.Add("a kernel on a rank's memory file", equal, "");
  return absl::OkStatus();
}

// Three steps of the toy model, and whether every rank ends with the bits of plain loops.
void CheckJob(const CudaApi& api, int ranks, const std::string& param, const std::string& reduce,
              Report& report) {
  constexpr int64_t kSteps = 3;
  const std::string name =
      absl::StrCat("job of ", ranks, " ranks, ", param, " reduced in ", reduce);
  const auto gpus = GpuRanks::Create(&api, ranks, GpuJob(param, reduce));
  if (!gpus.ok()) return report.Add(name, false, absl::StrCat(": ", gpus.status().ToString()));
  const std::vector<absl::Status> statuses = (*gpus)->Run([&](Session& session) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(GpuTrain(api, session, kSteps));
    return session.Finish();
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return report.Add(name, false, absl::StrCat(": ", status.ToString()));
  }
  report.Add(name, true, absl::StrCat(", ", kSteps, " steps"));
}

int Main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const absl::StatusOr<ProcessEnv> env = ProcessEnv::Read();
  if (!env.ok()) {
    fprintf(stderr, "gpu_check: %s\n", std::string(env.status().message()).c_str());
    return 2;
  }
  const absl::StatusOr<const CudaApi*> api =
      LoadCudaApi({.nccl_library = env->nccl_library, .cuda_home = env->cuda_home});
  if (!api.ok()) {
    fprintf(stderr, "gpu_check: %s: nothing was checked\n",
            std::string(api.status().message()).c_str());
    return kUnavailable;
  }
  const int gpus = CountGpus().value_or(0);
  printf("gpu_check: %d GPUs\n", gpus);
  Report report;
  if (const absl::Status status = CheckGpu(**api, report); !status.ok())
    report.Add("kernels", false, absl::StrCat(": ", status.ToString()));
  if (const absl::Status status = CheckMemoryFile(**api, report); !status.ok())
    report.Add("a kernel on a rank's memory file", false, absl::StrCat(": ", status.ToString()));
  for (int ranks = 1; ranks <= std::min(gpus, 2); ++ranks) {
    for (const char* param : {"float32", "bfloat16"}) {
      for (const char* reduce : {"float32", "bfloat16"})
        CheckJob(**api, ranks, param, reduce, report);
    }
  }
  return report.Finish();
}

}  // namespace
}  // namespace tessera

int main() { return tessera::Main(); }
