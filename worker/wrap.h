// Wrapping while building: a model too large for any one process is cut into units as it is made.
// Every rank runs the same program; a module that is wrapped is planned by the coordinator, each
// rank keeps its slice of the module's values and drops the rest. Values never leave their process.
//
//   TESSERA_ASSIGN_OR_RETURN(auto builder, WrapBuilder::Connect({}));   // a job with model.built
//   {
//     TESSERA_ASSIGN_OR_RETURN(const EnableWrap scope, EnableWrap::Enter(builder.get(), {}));
//     WrapModule model;                                 // "": the root
//     for (const std::string name : {"h.0", "h.1"}) {
//       WrapModule block;
//       block.name = name;
//       block.parameters.push_back(Weights("w", {4096, 4096}));   // a WrapParameter with values
//       TESSERA_RETURN_IF_ERROR(Wrap(builder.get(), block));      // sealed: its values are gone
//       layers.children.push_back(std::move(block));              // a WrapModule named "h"
//     }
//     model.children.push_back(std::move(layers));
//     TESSERA_RETURN_IF_ERROR(Wrap(builder.get(), model));        // the root seals the plan
//   }
//   Session::Options options;
//   options.built = builder;
//   TESSERA_ASSIGN_OR_RETURN(auto session, Session::Join(std::move(options)));
//
// Rules (FairScale's enable_wrap, wrap and auto_wrap, with a scope for each builder in place of one
// for the process):
//   - outside a scope, and without a builder, Wrap and AutoWrap leave the module as it is: OK;
//   - one scope at a time; it ends with its object, whatever ends that;
//   - settings of a unit: the scope's < the module's own wrap_config < the call's;
//   - AutoWrap's policy: the call's, else the scope's, else size with its default;
//   - a module that is wrapped may hold wrapped ones, and is wrapped once; what a policy counts
//     leaves them out;
//   - a tie holds within what one call wraps; a tie to a sealed unit is an error that names both;
//   - an error leaves the module as it was, and the call may be repeated: after a lost answer it
//     gets the answer again;
//   - every rank wraps the same; who does not is named, with the FQN.
//
// Thread-safety: several threads may wrap modules of one builder, children before what holds them.
// A module belongs to one thread at a time.
#ifndef TESSERA_WORKER_WRAP_H_
#define TESSERA_WORKER_WRAP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/model.pb.h"
#include "worker/wrap_builder.h"

namespace tessera {

struct WrapParameter {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = v1::FLOAT32;
  bool requires_grad = true;
  // As many as the shape says, row by row, rounded to dtype; or none: the first values are those of
  // `init` and the job's seed. Freed when the parameter's unit is sealed.
  std::vector<float> values;
  std::optional<v1::Init> init = std::nullopt;
  // FQN of the parameter that holds the storage; then without values.
  std::string tied_to = "";
};

struct WrapModule {
  // The FQN that it has in the model where it is given to Wrap or AutoWrap, "" for the root. Of any
  // other the last segment is enough.
  std::string name;
  std::string class_name = "";
  std::vector<std::string> base_classes = {};
  std::vector<WrapParameter> parameters = {};
  std::vector<v1::Buffer> buffers = {};
  std::vector<WrapModule> children = {};
  // For the policy "annotated", as Module.wrap.
  std::optional<bool> wrap = std::nullopt;
  std::optional<v1::WrapConfig> wrap_config = std::nullopt;
  // It is a sealed unit: set by Wrap and AutoWrap, which also make `name` its FQN.
  bool wrapped = false;
};

// A scope in which Wrap and AutoWrap of a builder act. Ends when it is destroyed.
class EnableWrap {
 public:
  // Settings that lose to a module's own and a call's, and AutoWrap's policy.
  struct Defaults {
    v1::WrapConfig config = {};
    std::optional<v1::WrapSpec> policy = std::nullopt;
  };

  // In the scope of no builder nothing is wrapped. FAILED_PRECONDITION: the builder is in a scope
  // already, which goes on. INVALID_ARGUMENT: a setting is wrong; no scope begins.
  static absl::StatusOr<EnableWrap> Enter(WrapBuilder* builder, Defaults defaults);

  EnableWrap(EnableWrap&& other) noexcept : builder_(std::exchange(other.builder_, nullptr)) {}
  EnableWrap& operator=(EnableWrap&&) = delete;
  ~EnableWrap();

 private:
  explicit EnableWrap(WrapBuilder* builder) : builder_(builder) {}
  WrapBuilder* builder_;
};

// Makes the module a unit, and with "" the model complete. Errors: as
// MembershipService.AnnounceModule; INVALID_ARGUMENT: the module makes no sense, names the FQN;
// FAILED_PRECONDITION: it is wrapped already; RESOURCE_EXHAUSTED: no memory for the slice;
// DEADLINE_EXCEEDED: no answer within timeouts.form; ABORTED, UNAVAILABLE: the job is over.
absl::Status Wrap(WrapBuilder* builder, WrapModule& module, const v1::WrapConfig& overrides = {});

// Makes units of the modules in it that the policy names, itself perhaps too; `overrides` is for
// each of them. The root is one as the job's wrap.root_unit says. Errors: as Wrap.
absl::Status AutoWrap(WrapBuilder* builder, WrapModule& module,
                      const std::optional<v1::WrapSpec>& policy = std::nullopt,
                      const v1::WrapConfig& overrides = {});

}  // namespace tessera

#endif  // TESSERA_WORKER_WRAP_H_
