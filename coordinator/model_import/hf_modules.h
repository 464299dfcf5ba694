// The modules that transformers' models are made of, as torch registers them: the same names, order
// and shapes. A Linear's weight is [out, in], a Conv1D's [in, out].
//
//   const HfModules make("bfloat16");
//   v1::Module* mlp = make.Module(layer, "mlp", "LlamaMLP");
//   make.Linear(mlp, "up_proj", hidden, intermediate, /*bias=*/false);
//
// Each returns the new module, which its parent owns. Thread-safety: as a value.
#ifndef TESSERA_COORDINATOR_MODEL_IMPORT_HF_MODULES_H_
#define TESSERA_COORDINATOR_MODEL_IMPORT_HF_MODULES_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

class HfModules {
 public:
  using Shape = std::initializer_list<int64_t>;
  using Names = std::initializer_list<absl::string_view>;

  // `dtype` is that of all parameters.
  explicit HfModules(std::string dtype) : dtype_(std::move(dtype)) {}

  const std::string& dtype() const { return dtype_; }

  // A child without parameters. `bases` are the classes between its own and Module.
  v1::Module* Module(v1::Module* parent, absl::string_view name, absl::string_view class_name,
                     Names bases = {}) const;
  // Gives `module` a class, as Module does.
  void SetClass(v1::Module* module, absl::string_view class_name, Names bases) const;
  // Another name of the module at `fqn`.
  void Alias(v1::Module* parent, absl::string_view name, absl::string_view fqn) const;
  v1::Module* List(v1::Module* parent, absl::string_view name) const;
  void Dropout(v1::Module* parent, absl::string_view name) const;

  v1::Module* Linear(v1::Module* parent, absl::string_view name, int64_t in, int64_t out,
                     bool bias) const;
  v1::Module* Conv1D(v1::Module* parent, absl::string_view name, int64_t in, int64_t out) const;
  void Embedding(v1::Module* parent, absl::string_view name, int64_t rows, int64_t width) const;
  void LayerNorm(v1::Module* parent, absl::string_view name, int64_t width) const;
  // A norm without bias.
  void RmsNorm(v1::Module* parent, absl::string_view name, absl::string_view class_name,
               int64_t width) const;

  // `init` is zeros, ones or "": the default.
  v1::Parameter* Parameter(v1::Module* module, absl::string_view name, Shape shape,
                           absl::string_view init = "") const;
  void Buffer(v1::Module* module, absl::string_view name, Shape shape,
              absl::string_view dtype) const;

 private:
  std::string dtype_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MODEL_IMPORT_HF_MODULES_H_
