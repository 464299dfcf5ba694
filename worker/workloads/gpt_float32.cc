#include "worker/workloads/gpt_float32.h"

#include "common/float_bits.h"

namespace tessera {
namespace {

template <float (*kWiden)(uint16_t), uint16_t (*kRound)(float)>
void StoreRounded(const std::vector<float>& values, bool add, uint16_t* to) {
  for (size_t i = 0; i < values.size(); ++i) {
    to[i] = kRound(add ? kWiden(to[i]) + values[i] : values[i]);
  }
}

}  // namespace

const float* Float32Parameters::Widen(int key, const TensorView& view) {
  if (view.dtype == v1::FLOAT32) return view.as<const float>();
  std::vector<float>& values = values_[key];
  values.resize(view.numel);
  const uint16_t* from = view.as<const uint16_t>();
  const bool bfloat16 = view.dtype == v1::BFLOAT16;
  for (int64_t i = 0; i < view.numel; ++i) {
    values[i] = bfloat16 ? FloatFromBFloat16(from[i]) : FloatFromFloat16(from[i]);
  }
  return values.data();
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

void Float32Gradients::Store() {
  for (auto& [key, pending] : pending_) {
    if (!pending.open) continue;
    pending.open = false;
    uint16_t* to = pending.slot.view.as<uint16_t>();
    if (pending.slot.view.dtype == v1::BFLOAT16) {
      StoreRounded<FloatFromBFloat16, BFloat16FromFloat>(pending.values, pending.slot.accumulate,
                                                         to);
    } else {
      StoreRounded<FloatFromFloat16, Float16FromFloat>(pending.values, pending.slot.accumulate, to);
    }
  }
}

}  // namespace tessera
