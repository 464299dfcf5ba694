// Models of several safetensors files, of safetensors_header.h.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/json_document.h"
#include "common/safetensors_header.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

// The index of a model of 100,000 tensors has 10 MB.
constexpr int64_t kMaxIndexBytes = int64_t{32} << 20;
constexpr int kMaxIndexDepth = 16;

bool IsPlainName(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors") && name.find('/') == absl::string_view::npos &&
         name.find('\\') == absl::string_view::npos &&
         std::none_of(name.begin(), name.end(), absl::ascii_iscntrl);
}

}  // namespace

std::vector<std::string> SafetensorsIndex::Files() const {
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map) files.insert(file);
  return {files.begin(), files.end()};
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view json,
                                                       absl::string_view source_name) {
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json document,
                           ParseJsonObject(json, source_name, kMaxIndexBytes, kMaxIndexDepth));
  const auto map = document.find("weight_map");
  if (map == document.end() || !map->is_object() || map->empty()) {
    return InvalidField(source_name, absl::StrCat("weight_map ",
                                                  map == document.end() ? "is missing"
                                                  : map->is_object()    ? "is empty"
                                                                        : "is not an object",
                                                  "; give an object of tensors and their files"));
  }
  SafetensorsIndex index;
  index.name = std::string(source_name);
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsPlainName(file.get_ref<const std::string&>())) {
      return InvalidField(TensorPlace(source_name, tensor),
                          absl::StrCat("is in ", ShowJson(file),
                                       "; give the name of a .safetensors file beside the index"));
    }
    index.weight_map.emplace(tensor, file.get<std::string>());
  }
  return index;
}

absl::Status CheckSafetensorsIndex(const SafetensorsIndex& index,
                                   absl::Span<const SafetensorsFile> files,
                                   const std::vector<std::vector<SafetensorsTensor>>& tensors) {
  size_t found = 0;
  std::set<std::pair<absl::string_view, absl::string_view>> there;  // file, tensor
  for (size_t i = 0; i < files.size(); ++i) {
    for (const SafetensorsTensor& tensor : tensors[i]) {
      const auto listed = index.weight_map.find(tensor.name);
      if (listed == index.weight_map.end() || listed->second != files[i].name) {
        return InvalidField(TensorPlace(files[i].name, tensor.name),
                            absl::StrCat("is there, but ", index.name, " says ",
                                         listed == index.weight_map.end()
                                             ? "nothing of it"
                                             : absl::StrCat("it is in ", listed->second)));
      }
      there.emplace(files[i].name, tensor.name);
      ++found;
    }
  }
  if (found == index.weight_map.size()) return absl::OkStatus();
  for (const auto& [tensor, file] : index.weight_map) {
    if (there.count({file, tensor}) > 0) continue;
    return InvalidField(TensorPlace(index.name, tensor),
                        absl::StrCat("should be in ", file, " and is not there"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
