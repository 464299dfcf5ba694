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
  const v1::RankFileLayout& file = header.rank_file();
  absl::StrAppend(&text, "rank_file ", file.record_bytes(), ",", file.undo_offset_bytes(), ",");
  absl::StrAppend(&text, file.undo_bytes(), ",", file.total_bytes(), "\n");
  for (const v1::UnitLayout& unit : units) {
    absl::StrAppend(&text, "unit ", unit.fqn(), "\nlevel ", unit.level(), "\npadded_numel ");
    absl::StrAppend(&text, unit.padded_numel(), "\nshard_numel ", unit.shard_numel(), "\nregions ");
    absl::StrAppend(&text, unit.parameter_offset_bytes(), ",", unit.gradient_offset_bytes(), ",",
                    unit.optimizer_offset_bytes(), "\n");
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
