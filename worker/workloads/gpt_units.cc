#include "worker/workloads/gpt_units.h"

#include <algorithm>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/errors.h"
#include "common/status_macros.h"

namespace tessera {
namespace {

struct Place {
  int unit = 0;
  int64_t numel = 0;
};
using Places = absl::flat_hash_map<std::string, Place>;

Places PlacesOf(const v1::Plan& plan) {
  Places places;
  for (int unit = 0; unit < plan.units_size(); ++unit) {
    for (const v1::UnitParameter& parameter : plan.units(unit).parameters()) {
      const Place place{unit, parameter.numel()};
      places[parameter.fqn()] = place;
      for (const std::string& tied : parameter.tied_fqns()) places[tied] = place;
    }
  }
  return places;
}

bool Has(const std::vector<int>& units, int unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

// `held`: units that are whole anyway.
absl::StatusOr<GptPart> MakePart(const v1::Plan& plan, const Places& places,
                                 absl::string_view prefix, absl::Span<const char* const> names,
                                 absl::Span<const int64_t> numels, const std::vector<int>& held) {
  GptPart part;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string fqn = absl::StrCat(prefix, names[i]);
    const auto place = places.find(fqn);
    if (place == places.end()) {
      return InvalidField(
          fqn, "the workload gpt needs this parameter, and the model has none of that name");
    }
    if (place->second.numel != numels[i]) {
      return InvalidField(
          fqn, absl::StrCat("has ", place->second.numel,
                            " elements; the gpt that the job describes has ", numels[i]));
    }
    const int unit = place->second.unit;
    const DType dtype = plan.units(unit).param_dtype();
    if (dtype != v1::FLOAT32 && dtype != v1::BFLOAT16 && dtype != v1::FLOAT16) {
      return absl::UnimplementedError(
          absl::StrCat("the workload gpt takes float32, bfloat16 and float16; unit '",
                       plan.units(unit).fqn(), "' is unsharded in ", DTypeName(dtype)));
    }
    part.fqns.push_back(fqn);
    part.units.push_back(unit);
    if (!Has(held, unit) && !Has(part.unshards, unit)) part.unshards.push_back(unit);
  }
  return part;
}

}  // namespace

std::vector<int> GptUnits::Order(int64_t micro_batches, bool recompute) const {
  std::vector<int> order;
  const auto append = [&order](const GptPart& part) {
    order.insert(order.end(), part.unshards.begin(), part.unshards.end());
  };
  for (int64_t i = 0; i < micro_batches; ++i) {
    append(root);
    std::for_each(blocks.begin(), blocks.end(), append);
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      if (recompute) append(*block);
      append(*block);
    }
  }
  return order;
}

absl::StatusOr<GptUnits> FindGptUnits(const v1::Plan& plan, const GptShape& shape) {
  const Places places = PlacesOf(plan);
  GptUnits units;
  TESSERA_ASSIGN_OR_RETURN(
      units.root, MakePart(plan, places, "", kRootParameterNames, RootNumel(shape), /*held=*/{}));
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    TESSERA_ASSIGN_OR_RETURN(
        GptPart block, MakePart(plan, places, absl::StrCat("h.", layer, "."), kBlockParameterNames,
                                BlockNumel(shape), units.root.unshards));
    units.blocks.push_back(std::move(block));
  }
  // In the order of the backward, a later part takes over from an earlier one.
  std::map<int, GptPart*> last;
  for (auto block = units.blocks.rbegin(); block != units.blocks.rend(); ++block) {
    for (const int unit : block->units) last[unit] = &*block;
  }
  for (const int unit : units.root.units) last[unit] = &units.root;
  for (const auto& [unit, part] : last) part->reduces.push_back(unit);
  return units;
}

}  // namespace tessera
