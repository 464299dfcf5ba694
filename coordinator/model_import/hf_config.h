// A Hugging Face config.json as the ModelSpec of the model that transformers builds from it: the
// module tree of its modelling code, with classes, base classes (up to Module), parameters,
// buffers, ties and shared modules. The version that is followed is 4.57.3, with sdpa attention;
// in it each of Mixtral's experts has Linear modules of its own.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec model, ModelFromHfConfig(text, "config.json"));
//
// - model_type: llama, mistral, mixtral, qwen2, gpt2, bert or t5.
// - `architectures` has the class to build, e.g. LlamaForCausalLM; without it the class is the one
//   whose size people quote: ForCausalLM, GPT2LMHeadModel, BertModel, T5ForConditionalGeneration.
// - `dtype` or `torch_dtype` is the parameters' dtype; without either float32. Buffers have theirs.
// - Sizes that make a model (hidden_size, num_hidden_layers, ...) have to be there; other keys have
//   transformers' defaults, and keys that change no shape are not looked at.
// - Quantized models and pruned heads are refused: their tensors are not the model's parameters.
//
// Thread-safety: pure functions of values.
#ifndef TESSERA_COORDINATOR_MODEL_IMPORT_HF_CONFIG_H_
#define TESSERA_COORDINATOR_MODEL_IMPORT_HF_CONFIG_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

// A valid ModelSpec, named after its class. INVALID_ARGUMENT, one line that begins with
// `source_name` and names the key: not a JSON object, an unknown model_type, architecture, dtype or
// activation, a key that is missing, of another type or out of bounds, sizes that do not divide,
// or what ValidateModelSpec refuses.
absl::StatusOr<v1::ModelSpec> ModelFromHfConfig(absl::string_view json,
                                                absl::string_view source_name);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MODEL_IMPORT_HF_CONFIG_H_
