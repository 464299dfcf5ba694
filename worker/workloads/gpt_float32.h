// float32 stand-ins for the root's parameters and gradients that its unit has in a 16-bit dtype.
// The layers compute in float32: a parameter is widened when its unit is used, a gradient is
// rounded once, when all of it is there, and that of the token embedding has two parts. Blocks need
// none of this (block_float32.h).
//
//   Float32Parameters parameters;
//   const float* weight = parameters.Widen(0, view);  // the view's own memory if it is float32
//   Float32Gradients gradients;
//   GradientTarget target = gradients.Open(0, slot);  // compute into it, as often as it is written
//   gradients.Store();                                // before Reduce
//
// Thread-safety: none. Memory grows to what was asked for and stays.
#ifndef TESSERA_WORKER_WORKLOADS_GPT_FLOAT32_H_
#define TESSERA_WORKER_WORKLOADS_GPT_FLOAT32_H_

#include <map>
#include <vector>

#include "worker/session.h"
#include "worker/tensor_view.h"
#include "worker/workloads/gpt_layers.h"

namespace tessera {

class Float32Parameters {
 public:
  // `key` names the parameter; what it gave is valid until the next Widen of the same key.
  const float* Widen(int key, const TensorView& view);

 private:
  std::map<int, std::vector<float>> values_;
};

class Float32Gradients {
 public:
  // Where to compute a gradient whose place is `slot`. Opened again before Store, it says to add to
  // what is there.
  GradientTarget Open(int key, const GradientSlot& slot);
  // Rounds what was computed since the last Store into the slots that were given, or adds it to
  // them.
  void Store();

 private:
  struct Pending {
    GradientSlot slot;
    std::vector<float> values;
    bool open = false;
  };
  std::map<int, Pending> pending_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_WORKLOADS_GPT_FLOAT32_H_
