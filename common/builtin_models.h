// Models that need no file.
//
// Names and layouts are those of GPT-2 as Hugging Face publishes it (Conv1D weights are [in, out]),
// so that an export can be read by their code: root class "GPT" with wte, wpe (Embedding), h
// (ModuleList of Block: ln_1, attn{c_attn, c_proj}, ln_2, mlp{c_fc, c_proj}), ln_f, and
// lm_head.weight tied to wte.weight. Everything is float32. Weights start as normal(0, 0.02), the
// two projections that end on the residual path as normal(0, 0.02 / sqrt(2 x layers)), biases as
// zeros, norms as ones.
//
//   const v1::ModelSpec spec = GptModelSpec({.layers = 4, .width = 128});
//   // ... has "h.0.attn.c_attn.weight" [128, 384].
#ifndef TESSERA_COMMON_BUILTIN_MODELS_H_
#define TESSERA_COMMON_BUILTIN_MODELS_H_

#include <cstdint>

#include "tessera/v1/model.pb.h"

namespace tessera {

struct GptSizes {
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;     // divides width; changes no shape
  int64_t context = 64;  // positions
  int64_t vocab = 256;
};

// Trusts the sizes; ResolveJobSpec has checked those of a job.
v1::ModelSpec GptModelSpec(const GptSizes& sizes);

}  // namespace tessera

#endif  // TESSERA_COMMON_BUILTIN_MODELS_H_
