#include "worker/workloads/gpt_float32.h"

#include "worker/collectives/cpu_kernels.h"

namespace tessera {
const float* Float32Parameters::Widen(int key, const TensorView& view) {
  if (view.dtype == v1::FLOAT32) return view.as<const float>();
  std::vector<float>& values = values_[key];
  values.resize(view.numel);
  WidenToFloat32(view.data, view.numel, view.dtype, values.data());
  return values.data();
}

int64_t Float32Parameters::bytes() const {
  size_t bytes = 0;
  for (const auto& [key, values] : values_) bytes += values.capacity() * sizeof(float);
  return static_cast<int64_t>(bytes);
}

GradientTarget Float32Gradients::Open(int key, const GradientSlot& slot) {
  if (slot.view.dtype == v1::FLOAT32) return {slot.view.as<float>(), slot.accumulate};
  Pending& pending = pending_[key];
  const bool again = pending.open;
  if (!again) pending.slot = slot;
  pending.open = true;
  pending.values.resize(slot.view.numel);
  return {pending.values.data(), again};
}

int64_t Float32Gradients::bytes() const {
  size_t bytes = 0;
  for (const auto& [key, pending] : pending_) bytes += pending.values.capacity() * sizeof(float);
  return static_cast<int64_t>(bytes);
}

void Float32Gradients::Store() {
  for (auto& [key, pending] : pending_) {
    if (!pending.open) continue;
    pending.open = false;
    const TensorView& view = pending.slot.view;
    if (pending.slot.accumulate) {
      AddFloat32(pending.values.data(), view.numel, view.dtype, view.data);
    } else {
      CastFloat32(pending.values.data(), view.numel, view.dtype, view.data);
    }
  }
}

}  // namespace tessera
