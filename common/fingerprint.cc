#include "common/fingerprint.h"

#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/dtype.h"

namespace tessera {
namespace {

void AppendSlots(std::string* text, absl::string_view key,
                 const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  for (const v1::Slot& slot : slots) {
    absl::StrAppend(text, key, " ", slot.offset_bytes(), ",", slot.bytes(), ",",
                    slot.has_level() ? absl::StrCat(slot.level()) : "-",
                    slot.has_unit() ? absl::StrCat(",", slot.unit()) : "", "\n");
  }
}

// What a plan says only where it is not as it would be without a word: so plans that use none of
// it have the text, and the fingerprint, that they had before there was any.
void AppendSettings(const v1::Unit& unit, std::string* text) {
  const auto add = [&](absl::string_view key, const auto& value) {
    absl::StrAppend(text, key, " ", value, "\n");
  };
  const auto add_dtype = [&](absl::string_view key, DType dtype, DType otherwise) {
    if (dtype != v1::DTYPE_UNSPECIFIED && dtype != otherwise) add(key, DTypeName(dtype));
  };
  add_dtype("gradient_dtype", unit.gradient_dtype(), unit.original_dtype());
  add_dtype("unsynced_gradient_dtype", unit.unsynced_gradient_dtype(), unit.param_dtype());
  // The root's inputs are cast where param_dtype is not the model's, others' are not.
  const bool casts = unit.fqn().empty() && unit.param_dtype() != unit.original_dtype();
  if (unit.has_input_dtype() != casts || (casts && unit.input_dtype() != unit.param_dtype())) {
    add("input_dtype", unit.has_input_dtype() ? DTypeName(unit.input_dtype()) : "-");
  }
  const v1::WrapConfig& overrides = unit.overrides();
  if (overrides.has_strategy()) add("strategy", overrides.strategy());
  if (overrides.has_param_align_bytes()) add("param_align_bytes", overrides.param_align_bytes());
  if (overrides.has_shard_align_bytes()) add("shard_align_bytes", overrides.shard_align_bytes());
  if (overrides.has_reshard_group()) add("reshard_group", overrides.reshard_group());
  for (const v1::UnitBuffer& buffer : unit.buffers()) {
    const std::string shape = absl::StrJoin(buffer.shape(), ",");
    add("buffer", buffer.fqn());
    absl::StrAppend(text, "shape ", shape.empty() ? "-" : shape, "\noriginal_dtype ",
                    DTypeName(buffer.original_dtype()), "\nbuffer_dtype ",
                    DTypeName(buffer.buffer_dtype()), "\n");
  }
}

}  // namespace

std::string Sha256Hex(absl::string_view text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

std::string PlanText(const google::protobuf::RepeatedPtrField<v1::Unit>& units) {
  std::string text = "tessera-plan 1\n";
  for (const v1::Unit& unit : units) {
    absl::StrAppend(&text, "unit ", unit.fqn(), "\nclass ", unit.class_name(), "\nnumel ",
                    unit.numel());
    absl::StrAppend(&text, "\noriginal_dtype ", DTypeName(unit.original_dtype()), "\nparam_dtype ",
                    DTypeName(unit.param_dtype()), "\nreduce_dtype ",
                    DTypeName(unit.reduce_dtype()));
    absl::StrAppend(&text, "\nenclosing_unit ",
                    unit.has_enclosing_unit() ? absl::StrCat(unit.enclosing_unit()) : "-", "\n");
    AppendSettings(unit, &text);
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      const std::string shape = absl::StrJoin(parameter.shape(), ",");
      absl::StrAppend(&text, "parameter ", parameter.fqn(), "\nshape ", shape.empty() ? "-" : shape,
                      "\nrequires_grad ", parameter.requires_grad() ? 1 : 0, "\n");
      for (const std::string& tied : parameter.tied_fqns())
        absl::StrAppend(&text, "tied ", tied, "\n");
    }
  }
  return text;
}

std::string LayoutText(const v1::Layout& header,
                       const google::protobuf::RepeatedPtrField<v1::UnitLayout>& units) {
  std::string text = "tessera-layout 1\n";
  absl::StrAppend(&text, "plan ", header.plan_fingerprint(), "\nworld_size ", header.world_size());
  absl::StrAppend(&text, "\nsharding_strategy ",
                  v1::ShardingStrategy_Name(header.sharding_strategy()), "\nshard_count ",
                  header.shard_count(), "\nreplica_count ", header.replica_count());
  absl::StrAppend(&text, "\nunshard_mode ", v1::UnshardMode_Name(header.unshard_mode()),
                  "\nprefetch ", header.prefetch(), "\ngradient_stride_bytes ",
                  header.gradient_stride_bytes(), "\n");
  AppendSlots(&text, "unsharded_slot", header.unsharded_slots());
  AppendSlots(&text, "gradient_slot", header.gradient_slots());
  if (header.device() == v1::CUDA) {
    absl::StrAppend(&text, "device CUDA\nstaging_bytes ", header.staging_bytes(), "\n");
  }
  // What jobs of one host and one strategy do not have, so that they keep their fingerprints.
  if (header.local_world_size() != 0)
    absl::StrAppend(&text, "local_world_size ", header.local_world_size(), "\n");
  if (header.device() != v1::CUDA && header.staging_bytes() != 0)
    absl::StrAppend(&text, "staging_bytes ", header.staging_bytes(), "\n");
  if (header.reshard_group() != 0)
    absl::StrAppend(&text, "reshard_group ", header.reshard_group(), "\n");
  if (header.reshard_root()) absl::StrAppend(&text, "reshard_root\n");
  if (header.full_precision_eval()) absl::StrAppend(&text, "full_precision_eval\n");
  AppendSlots(&text, "reshard_slot", header.reshard_slots());
  AppendSlots(&text, "accumulation_slot", header.accumulation_slots());
  const v1::RankFileLayout& file = header.rank_file();
  absl::StrAppend(&text, "rank_file ", file.record_bytes(), ",", file.undo_offset_bytes(), ",");
  absl::StrAppend(&text, file.undo_bytes(), ",", file.total_bytes(), "\n");
  for (const v1::UnitLayout& unit : units) {
    absl::StrAppend(&text, "unit ", unit.fqn(), "\nlevel ", unit.level(), "\npadded_numel ");
    absl::StrAppend(&text, unit.padded_numel(), "\nshard_numel ", unit.shard_numel(), "\nregions ");
    absl::StrAppend(&text, unit.parameter_offset_bytes(), ",", unit.gradient_offset_bytes(), ",",
                    unit.optimizer_offset_bytes(), "\n");
    if (unit.has_sharding_strategy()) {
      absl::StrAppend(&text, "sharding_strategy ",
                      v1::ShardingStrategy_Name(unit.sharding_strategy()), "\n");
    }
    if (unit.has_reshard_group())
      absl::StrAppend(&text, "reshard_group ", unit.reshard_group(), "\n");
    for (const v1::ParameterLayout& parameter : unit.parameters()) {
      absl::StrAppend(&text, "parameter ", parameter.offset(), " ", parameter.fqn(), "\n");
    }
  }
  return text;
}

std::string PlanFingerprint(const google::protobuf::RepeatedPtrField<v1::Unit>& units) {
  return Sha256Hex(PlanText(units));
}

std::string LayoutFingerprint(const v1::Layout& header,
                              const google::protobuf::RepeatedPtrField<v1::UnitLayout>& units) {
  return Sha256Hex(LayoutText(header, units));
}

}  // namespace tessera
