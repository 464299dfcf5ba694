// Trees of announced modules: what is sealed in them, ties, annotations, and where two differ.
//
// An announced module stands for its subtree; of a sealed unit in it only the name is there (a
// stub). FQNs of ties are those of the model, whose root is "".
//
// Thread-safety: pure functions.
#ifndef TESSERA_COORDINATOR_DRAFT_MODULE_H_
#define TESSERA_COORDINATOR_DRAFT_MODULE_H_

#include <functional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tessera/v1/membership_service.pb.h"
#include "tessera/v1/model.pb.h"

namespace tessera {

// Every module with its FQN, parents first; `visit` returns whether to go on below it.
void VisitModules(v1::Module* module, const std::string& fqn,
                  const std::function<bool(const std::string& fqn, v1::Module* module)>& visit);

// What a module must be to be announced, beside what a ModelSpec must be: nested at most
// kMaxModuleDepth deep, no alias, each name of `sealed` once as a stub, and every tie to a
// parameter of it. `sealed_unit`: the sealed unit that has a parameter; "(none)" where none has.
// INVALID_ARGUMENT; names the FQNs.
absl::Status CheckAnnounced(
    const v1::ModuleAnnouncement& announcement,
    const std::function<std::string(const std::string& parameter)>& sealed_unit);

// The module without its stubs.
v1::Module WithoutStubs(const v1::ModuleAnnouncement& announcement);
// The module with each stub replaced by what `sealed` gives for its FQN. Its own name is the last
// segment of its FQN.
v1::Module WithSealed(const v1::ModuleAnnouncement& announcement,
                      const std::function<const v1::Module&(const std::string& fqn)>& sealed);

// Marks the modules that are units, with the settings of `announcement` around their own, and takes
// annotations and settings from all others. Stubs are left alone. What a policy makes a unit of one
// of `full_precision` classes (mixed_precision.ignored_classes) gets no dtypes but its own.
void AnnotateUnits(const v1::ModuleAnnouncement& announcement, const std::set<std::string>& units,
                   const google::protobuf::RepeatedPtrField<std::string>& full_precision,
                   v1::Module* module);

// `fqn` as seen from the module `from`, which encloses it.
std::string RelativeFqn(absl::string_view fqn, absl::string_view from);
// Ties relative to the module `from`.
void MakeTiesRelative(const std::string& from, v1::Module* module);

bool HasParameters(const v1::Module& module);
void SetDType(const std::string& dtype, v1::Module* module);

// Where two announcements of one FQN differ: "parameter \"h.0.weight\" is float32 [4, 4] there and
// float32 [4, 2] here"; "" where they do not.
std::string Difference(const v1::ModuleAnnouncement& there, const v1::ModuleAnnouncement& here);

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_DRAFT_MODULE_H_
