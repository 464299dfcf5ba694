#include "common/model_spec.h"

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/json_message.h"
#include "common/status_macros.h"

namespace tessera {

std::string JoinFqn(absl::string_view parent, absl::string_view name) {
  return parent.empty() ? std::string(name) : absl::StrCat(parent, ".", name);
}

absl::Status ValidateModelSpec(const v1::ModelSpec& spec) {
  return ModelIndex::Create(spec).status();
}

absl::StatusOr<v1::ModelSpec> ParseModelSpec(absl::string_view json,
                                             absl::string_view source_name) {
  v1::ModelSpec spec;
  TESSERA_RETURN_IF_ERROR(ParseJson(json, source_name, "a ModelSpec", &spec));
  TESSERA_RETURN_IF_ERROR(Annotate(ValidateModelSpec(spec), source_name));
  return spec;
}

}  // namespace tessera
