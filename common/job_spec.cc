#include "common/job_spec.h"

#include <google/protobuf/descriptor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/builtin_models.h"
#include "common/errors.h"
#include "common/json_message.h"
#include "common/model_spec.h"
#include "common/status_macros.h"
#include "google/protobuf/struct.pb.h"

namespace tessera {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::string FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return absl::StrJoin(names, ", ");
}

bool IsDuration(const FieldDescriptor& field) {
  return field.message_type() != nullptr &&
         field.message_type()->full_name() == "google.protobuf.Duration";
}

// The descriptors along the path, so that a path which ends nowhere is found before anything
// changes.
absl::StatusOr<std::vector<const FieldDescriptor*>> FindPath(absl::string_view dotted_path) {
  std::vector<const FieldDescriptor*> path;
  const Descriptor* type = v1::JobSpec::descriptor();
  for (const absl::string_view name : absl::StrSplit(dotted_path, '.')) {
    if (type == nullptr ||
        (!path.empty() && (path.back()->is_repeated() || IsDuration(*path.back())))) {
      return InvalidField(dotted_path,
                          absl::StrCat(path.back()->name(), " has no fields; set it whole"));
    }
    const FieldDescriptor* field = type->FindFieldByName(std::string(name));
    if (field == nullptr) {
      return InvalidField(dotted_path,
                          absl::StrCat("no such field; there are ", FieldNames(*type)));
    }
    path.push_back(field);
    type = field->message_type();
  }
  return path;
}

// Whatever `text` is. protobuf's own writer complains on stderr of what is not UTF-8.
std::string JsonString(absl::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json.push_back('\\');
      json.push_back(c);
    } else if (absl::ascii_iscntrl(c)) {
      absl::StrAppend(&json, "\\u00", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      json.push_back(c);
    }
  }
  json.push_back('"');
  return json;
}

// `value` as the JSON of one value for `field`.
absl::StatusOr<std::string> JsonOf(const FieldDescriptor& field, absl::string_view dotted_path,
                                   absl::string_view value) {
  const bool text = !field.is_repeated() &&
                    (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING || IsDuration(field));
  if (text && !absl::StartsWith(value, "\"") && !(IsDuration(field) && value == "null")) {
    const std::string json = JsonString(value);
    google::protobuf::Value alone;
    if (!ParseJson(json, "", "a value", &alone).ok()) {
      return InvalidField(dotted_path, "is not UTF-8; give another text");
    }
    return json;
  }
  // Alone first: a value that would close the object around it must not pass.
  google::protobuf::Value alone;
  if (!ParseJson(value, "", "a value", &alone).ok()) {
    return InvalidField(dotted_path, absl::StrCat("\"", value, "\" is not JSON"));
  }
  if (field.is_repeated() && !alone.has_list_value() && !alone.has_null_value()) {
    return InvalidField(dotted_path, "takes a list; write it as JSON, e.g. [1, 2] or [\"A\"]");
  }
  return std::string(value);
}

}  // namespace

absl::StatusOr<v1::JobSpec> ParseJobSpec(absl::string_view json, absl::string_view source_name) {
  v1::JobSpec spec;
  TESSERA_RETURN_IF_ERROR(ParseJson(json, source_name, "a JobSpec", &spec));
  return spec;
}

absl::Status SetField(v1::JobSpec* spec, absl::string_view dotted_path, absl::string_view value) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<const FieldDescriptor*> path, FindPath(dotted_path));
  TESSERA_ASSIGN_OR_RETURN(std::string json, JsonOf(*path.back(), dotted_path, value));
  for (auto field = path.rbegin(); field != path.rend(); ++field) {
    json = absl::StrCat("{\"", (*field)->name(), "\":", json, "}");
  }
  v1::JobSpec change;
  TESSERA_RETURN_IF_ERROR(ParseJson(json, "", "a JobSpec", &change));
  // Merging would add to lists and messages what they are to be replaced by.
  Message* owner = spec;
  for (const FieldDescriptor* field : path) {
    if (field == path.back()) {
      owner->GetReflection()->ClearField(owner, field);
    } else {
      owner = owner->GetReflection()->MutableMessage(owner, field);
    }
  }
  spec->MergeFrom(change);
  return absl::OkStatus();
}

absl::StatusOr<v1::ModelSpec> ModelOf(const v1::JobSpec& resolved) {
  const v1::ModelSource& model = resolved.model();
  if (model.has_file()) {
    return InvalidField(
        "model.file",
        absl::StrCat("\"", model.file(), "\" was not read; send the file's content as model.spec"));
  }
  if (model.built()) {
    return InvalidField("model.built",
                        "leaves the model to the ranks' program, so there is nothing "
                        "to plan before it runs; give a spec");
  }
  v1::ModelSpec spec;
  if (model.has_spec()) {
    spec = model.spec();
  } else {
    spec = GptModelSpec({.layers = model.layers(),
                         .width = model.width(),
                         .heads = model.heads(),
                         .context = model.context(),
                         .vocab = model.vocab()});
  }
  TESSERA_RETURN_IF_ERROR(
      Annotate(ValidateModelSpec(spec), model.has_spec() ? "model.spec" : "model"));
  return spec;
}

}  // namespace tessera
