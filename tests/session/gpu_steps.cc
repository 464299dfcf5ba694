#include "tests/session/gpu_steps.h"

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/dtype.h"
#include "common/float_bits.h"
#include "common/status_macros.h"
#include "worker/device/cuda_device.h"

namespace tessera {
namespace {

constexpr double kLearningRate = 0.25;

uint16_t Narrow(DType dtype, float value) {
  return dtype == v1::BFLOAT16 ? BFloat16FromFloat(value) : Float16FromFloat(value);
}
float Widen(DType dtype, uint16_t bits) {
  return dtype == v1::BFLOAT16 ? FloatFromBFloat16(bits) : FloatFromFloat16(bits);
}
float Round(DType dtype, float value) {
  return dtype == v1::FLOAT32 ? value : Widen(dtype, Narrow(dtype, value));
}

// Elements of a view's dtype on the host.
struct Elements {
  DType dtype;
  std::vector<char> bytes;

  float Get(int64_t i) const {
    if (dtype == v1::FLOAT32) return reinterpret_cast<const float*>(bytes.data())[i];
    return Widen(dtype, reinterpret_cast<const uint16_t*>(bytes.data())[i]);
  }
  void Set(int64_t i, float value) {
    if (dtype == v1::FLOAT32) {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    } else {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = Narrow(dtype, value);
    }
  }
};

// On the stream that the session orders leases by; waits.
absl::Status Copy(const CudaApi& api, const CudaStream& stream, void* to, const void* from,
                  size_t bytes) {
  TESSERA_RETURN_IF_ERROR(
      stream.Error(api.memcpy_async(to, from, bytes, stream.handle()), "cudaMemcpyAsync"));
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<CudaEvent> done, CudaEvent::Record(stream));
  return done->Wait();
}

absl::Status WriteGradient(const CudaApi& api, Session& session, const UnitLease& lease,
                           const std::string& fqn, int64_t step) {
  const auto& stream = static_cast<const CudaStream&>(*session.stream());
  TESSERA_ASSIGN_OR_RETURN(const TensorView view, lease.Parameter(fqn));
  // Kept until the rank ends: memory that is freed may become another rank's, and the fake, which
  // does not see that, would take their copies for copies into one buffer.
  thread_local std::deque<Elements> kept;
  Elements& elements = kept.emplace_back(
      Elements{view.dtype, std::vector<char>(view.numel * DTypeBytes(view.dtype))});
  const size_t bytes = elements.bytes.size();
  TESSERA_RETURN_IF_ERROR(Copy(api, stream, elements.bytes.data(), view.data, bytes));
  for (int64_t i = 0; i < view.numel; ++i) {
    elements.Set(i, ToyGradient(elements.Get(i), session.rank(), step, i));
  }
  TESSERA_ASSIGN_OR_RETURN(const GradientSlot slot, session.GradientView(lease.unit(), fqn));
  return Copy(api, stream, slot.view.data, elements.bytes.data(), bytes);
}

}  // namespace

v1::JobSpec GpuJob(const std::string& param_dtype, const std::string& reduce_dtype) {
  v1::JobSpec job = ToyJob("auto");
  job.set_device("cuda");
  job.mutable_mixed_precision()->set_param_dtype(param_dtype);
  job.mutable_mixed_precision()->set_reduce_dtype(reduce_dtype);
  job.mutable_optimizer()->set_name("sgd");
  job.mutable_optimizer()->set_weight_decay(0);
  return job;
}

absl::Status GpuStep(const CudaApi& api, Session& session) {
  TESSERA_ASSIGN_OR_RETURN(const StepInfo step,
                           session.BeginStep({.learning_rate = kLearningRate}));
  TESSERA_RETURN_IF_ERROR(session.BeginMicroBatch({}));
  const int units = session.plan().units_size();
  for (int unit = 0; unit < units; ++unit)
    TESSERA_RETURN_IF_ERROR(session.Unshard(unit, Phase::kForward).status());
  for (int unit = units - 1; unit >= 0; --unit) {
    {
      TESSERA_ASSIGN_OR_RETURN(const UnitLease lease, session.Unshard(unit, Phase::kBackward));
      for (const v1::UnitParameter& parameter : session.plan().units(unit).parameters()) {
        if (absl::EndsWith(parameter.fqn(), ".c")) continue;
        TESSERA_RETURN_IF_ERROR(WriteGradient(api, session, lease, parameter.fqn(), step.step));
      }
    }
    TESSERA_RETURN_IF_ERROR(session.Reduce(unit));
  }
  return session.EndStep({.loss_sum = 1, .loss_count = 1}).status();
}

ToyValues GpuExpected(ToyValues values, int ranks, int64_t steps, DType param_dtype,
                      DType reduce_dtype) {
  for (auto& [fqn, parameter] : values) {
    if (absl::EndsWith(fqn, ".c")) continue;
    for (size_t i = 0; i < parameter.size(); ++i) {
      for (int64_t step = 1; step <= steps; ++step) {
        const float seen = Round(param_dtype, parameter[i]);
        float sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const float gradient =
              Round(param_dtype, ToyGradient(seen, rank, step, static_cast<int64_t>(i)));
          sum += Round(reduce_dtype, gradient);
        }
        const float average =
            Round(reduce_dtype, Round(reduce_dtype, sum) / static_cast<float>(ranks));
        parameter[i] -= static_cast<float>(kLearningRate) * average;
      }
    }
  }
  return values;
}

absl::Status GpuTrain(const CudaApi& api, Session& session, int64_t steps) {
  TESSERA_ASSIGN_OR_RETURN(const ToyValues start, ToySummonAll(session));
  for (int64_t step = 0; step < steps; ++step) TESSERA_RETURN_IF_ERROR(GpuStep(api, session));
  TESSERA_ASSIGN_OR_RETURN(const ToyValues end, ToySummonAll(session));
  const v1::Unit& unit = session.plan().units(0);
  const ToyValues expected =
      GpuExpected(start, session.world_size(), steps, unit.param_dtype(), unit.reduce_dtype());
  for (const auto& [fqn, values] : expected) {
    if (end.at(fqn) == values) continue;
    return absl::DataLossError(absl::StrCat("rank ", session.rank(), ": after ", steps, " steps ",
                                            fqn, " has other bits than plain loops give"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
