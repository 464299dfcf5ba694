// Reads and checks a ModelSpec, and walks one.
//
//   TESSERA_ASSIGN_OR_RETURN(const v1::ModelSpec spec, ParseModelSpec(text, "model.json"));
//   TESSERA_ASSIGN_OR_RETURN(const ModelIndex index, ModelIndex::Create(spec));
//   for (const ModelIndex::Parameter& parameter : index.parameters()) Use(parameter.fqn);
//
// What a model must be (everything else is INVALID_ARGUMENT, one line that names the FQN and says
// what to do):
//   - modules nest at most kMaxModuleDepth deep, and there is at least one parameter;
//   - names are not empty, hold no dot and no control character, and differ within a module;
//   - a parameter has a floating-point dtype, at least one dimension (a scalar cannot be sharded)
//     and positive extents; kMaxModelNumel bounds the elements of the whole model, so that no sum
//     of bytes overflows later;
//   - `tied_to` names a parameter that holds its own storage, of the same shape, dtype and
//     requires_grad. The `init` of a tied parameter means nothing: its holder's counts;
//   - `same_as` names an earlier module that is no alias and does not enclose this one, on a module
//     with nothing else.
// FSDP refuses scalars and integers too; extents of 0, which it takes, are refused here.
//
// Thread-safety: values; no shared state.
#ifndef TESSERA_COMMON_MODEL_SPEC_H_
#define TESSERA_COMMON_MODEL_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/dtype.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

// The root is at depth 1. protobuf reads messages 100 deep at most, and a module is one level of
// one.
inline constexpr int kMaxModuleDepth = 64;
inline constexpr int64_t kMaxModelNumel = int64_t{1} << 45;
// Modules and parameters that aliases and ties stand for, in all; only modules that are shared over
// and over come near it.
inline constexpr int64_t kMaxSharedUses = 1'000'000;

// `json` as a valid ModelSpec. INVALID_ARGUMENT: not JSON, an unknown key, a value of the wrong
// type, or as above; the message begins with `source_name`.
absl::StatusOr<v1::ModelSpec> ParseModelSpec(absl::string_view json, absl::string_view source_name);

// INVALID_ARGUMENT: as above.
absl::Status ValidateModelSpec(const v1::ModelSpec& spec);

// A module's or parameter's FQN, from its parent's (the root's is "") and its name.
std::string JoinFqn(absl::string_view parent, absl::string_view name);

// The modules and parameters of a valid ModelSpec as flat lists. Points into the spec, which must
// outlive it and stay as it is.
class ModelIndex {
 public:
  struct Module {
    const v1::Module* spec = nullptr;
    std::string fqn;
    int parent = -1;      // index in modules(); -1 for the root
    int subtree_end = 0;  // modules()[i + 1 .. subtree_end) are below module i
    int same_as = -1;     // index of the module that this one is an alias of; -1 for none
  };

  // Storage: a parameter that is tied to no other.
  struct Parameter {
    const v1::Parameter* spec = nullptr;
    std::string fqn;
    int module = 0;  // index in modules()
    int64_t numel = 0;
    DType dtype = v1::DTYPE_UNSPECIFIED;
    bool requires_grad = true;
    // Other places where the storage is used: ties, then aliases, each in walk order.
    struct Use {
      std::string fqn;
      int module = 0;  // where the use is: the module with the tie, or the alias
      // The module object that is used: `module` itself for a tie; for an alias its target, or what
      // an alias below the target stands for.
      int object = 0;
    };
    std::vector<Use> uses;
  };

  // INVALID_ARGUMENT: as above.
  static absl::StatusOr<ModelIndex> Create(const v1::ModelSpec& spec);

  // Pre-order, children in registration order; the root is first. Aliases are here, what is below
  // their target is not repeated.
  const std::vector<Module>& modules() const { return modules_; }
  // In the order of modules(), in each its own in registration order: the order of flat parameters.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // Whether module `inner` is `outer` or below it.
  bool Encloses(int outer, int inner) const {
    return outer <= inner && inner < modules_[outer].subtree_end;
  }

 private:
  friend class ModelIndexBuilder;
  std::vector<Module> modules_;
  std::vector<Parameter> parameters_;
};

}  // namespace tessera

#endif  // TESSERA_COMMON_MODEL_SPEC_H_
