// A Session's shards, written by others than the optimizer, and what ranks agree on for it.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/errors.h"
#include "common/status_macros.h"
#include "worker/blame.h"
#include "worker/session_impl.h"
#include "worker/shard_slices.h"
#include "worker/write_back.h"

namespace tessera {
namespace {

constexpr size_t kLongestPayload = 112;

// What a rank says of what it will write.
struct Change {
  int64_t unit = -1;
  uint64_t names = 0;
  uint64_t values = 0;
};

std::string Name(const v1::Unit& unit) { return unit.fqn().empty() ? "(root)" : unit.fqn(); }

absl::Status CheckWhole(const SummonedParameter& given, const v1::Unit& unit,
                        const v1::UnitParameter& parameter) {
  const std::vector<int64_t> shape(parameter.shape().begin(), parameter.shape().end());
  const int64_t bytes = parameter.numel() * DTypeBytes(unit.original_dtype());
  if (given.dtype == unit.original_dtype() && given.shape == shape &&
      static_cast<int64_t>(given.bytes.size()) == bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("parameter \"", given.fqn, "\" is written back as ", DTypeName(given.dtype),
                   " in ", given.bytes.size(), " bytes; it is ", DTypeName(unit.original_dtype()),
                   ", has ", bytes, " bytes and keeps its shape"));
}

}  // namespace

absl::StatusOr<std::pair<int, int>> SessionImpl::PlaceOf(absl::string_view parameter_fqn) const {
  TESSERA_ASSIGN_OR_RETURN(const Place place, Find(parameter_fqn));
  return std::make_pair(place.unit, place.parameter);
}

absl::Status SessionImpl::CheckIdle(absl::string_view what) {
  TESSERA_RETURN_IF_ERROR(Usable());
  LeaveUnusedStep();
  if (!in_step_) return absl::OkStatus();
  return Keep(
      absl::FailedPreconditionError(absl::StrCat(what, " inside a step; call EndStep first")));
}

absl::StatusOr<std::vector<std::string>> SessionImpl::Meet(absl::string_view what,
                                                           absl::string_view payload) {
  TESSERA_RETURN_IF_ERROR(Alive());
  if (payload.size() > kLongestPayload)
    return absl::InvalidArgumentError("ranks meet with at most 112 bytes");
  // Numbered, so that what a rank said when it was last here is not taken for its answer.
  const uint64_t tag = HashBytes(what, ++meetings_);
  std::string own(reinterpret_cast<const char*>(&tag), sizeof(tag));
  absl::StrAppend(&own, payload);
  absl::StatusOr<std::vector<std::string>> all = parts_.collectives->Exchange(own, what);
  TESSERA_RETURN_IF_ERROR(Keep(all.status()));
  for (size_t i = 0; i < all->size(); ++i) {
    std::string& said = (*all)[i];
    if (said.compare(0, sizeof(tag), own, 0, sizeof(tag)) != 0) {
      const int rank = static_cast<int>(i);
      return Keep(
          BlameRank(WithReason(absl::FailedPreconditionError(absl::StrCat(
                                   "rank ", parts_.assignment.rank(), " is in ", what, " and rank ",
                                   rank, " is somewhere else; every rank has to call it")),
                               "ORDER_MISMATCH"),
                    rank));
    }
    said.erase(0, sizeof(tag));
  }
  return all;
}

absl::Status SessionImpl::BeginWriting(int unit) {
  if (parts_.layout.device() == v1::CUDA) {
    return Keep(absl::UnimplementedError(
        "parameters cannot be written on a GPU yet; give the job device cpu"));
  }
  if (executor_->Unsharded(unit) != nullptr) {
    return Keep(absl::FailedPreconditionError(
        absl::StrCat("unit ", Name(plan_.units(unit)), " is in use; drop its lease first")));
  }
  // What was gathered ahead would be stale.
  executor_->Sweep();
  return absl::OkStatus();
}

void SessionImpl::EndWriting(int unit) {
  parts_.store->WriteComputeSlice(unit);
  executor_->PublishShard(unit);
}

void SessionImpl::ResumeAt(int64_t step, int64_t updates, double loss_scale,
                           int64_t loss_scale_age) {
  if (loss_scale > 0) loss_scale_.Restore(loss_scale, loss_scale_age);
  KeepLossScale();
  state_.step = step;
  state_.updates = updates;
  state_.data_position = step * parts_.spec.global_batch();
  parts_.store->StartFrom({.step = step,
                           .updates = updates,
                           .data_position = state_.data_position,
                           .loss_scale = state_.loss_scale,
                           .loss_scale_steps = state_.loss_scale_steps});
}

void SessionImpl::CountUnmanaged(const FlatTensor& averages) { unmanaged_.Add(averages); }

absl::StatusOr<SessionImpl::Changes> SessionImpl::FindChanges(
    absl::Span<const SummonedParameter> changed, int summoned) const {
  Changes changes;
  changes.unit = summoned;
  for (const SummonedParameter& parameter : changed) {
    TESSERA_ASSIGN_OR_RETURN(const Place place, Find(parameter.fqn));
    if (changes.unit < 0) changes.unit = place.unit;
    if (place.unit != changes.unit) {
      const std::string text =
          absl::StrCat("parameter \"", parameter.fqn, "\" is not in unit ",
                       Name(plan_.units(changes.unit)), "; write back one unit at a time");
      return summoned >= 0 ? absl::FailedPreconditionError(text) : absl::InvalidArgumentError(text);
    }
    if (!changes.parameters.try_emplace(place.parameter, &parameter).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameter \"", parameter.fqn, "\" is written back twice; give it once, by one name"));
    }
    const v1::Unit& unit = plan_.units(place.unit);
    TESSERA_RETURN_IF_ERROR(CheckWhole(parameter, unit, unit.parameters(place.parameter)));
  }
  if (changes.unit >= 0) return changes;
  return absl::InvalidArgumentError("WriteBack of no parameter, and none was summoned for it");
}

absl::Status SessionImpl::AgreeOn(const Changes& changes) {
  Change own;
  own.unit = changes.unit;
  for (const auto& [parameter, values] : changes.parameters) {
    own.names = HashBytes(plan_.units(changes.unit).parameters(parameter).fqn(), own.names);
    own.values = HashBytes({values->bytes.data(), values->bytes.size()}, own.values);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      Meet("WriteBack", absl::string_view(reinterpret_cast<const char*>(&own), sizeof(own))));
  for (size_t i = 0; i < all.size(); ++i) {
    Change other;
    std::memcpy(&other, all[i].data(), sizeof(other));
    if (std::memcmp(&other, &own, sizeof(own)) == 0) continue;
    const char* const what = other.unit != own.unit
                                 ? "another unit"
                                 : (other.names != own.names ? "other parameters" : "other values");
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", i, " writes back ", what, " than rank ", parts_.assignment.rank(), ", to unit ",
        Name(plan_.units(changes.unit)), "; change parameters alike on every rank"));
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::WriteBack(absl::Span<const SummonedParameter> changed) {
  TESSERA_RETURN_IF_ERROR(Alive());
  const int summoned = std::exchange(summoned_unit_, -1);
  TESSERA_RETURN_IF_ERROR(CheckIdle("WriteBack"));
  absl::StatusOr<Changes> changes = FindChanges(changed, summoned);
  TESSERA_RETURN_IF_ERROR(Keep(changes.status()));
  const int unit = changes->unit;
  TESSERA_RETURN_IF_ERROR(BeginWriting(unit));
  TESSERA_RETURN_IF_ERROR(Keep(AgreeOn(*changes)));
  const ShardSpan shard = parts_.store->Parameters(unit);
  const int64_t element = DTypeBytes(shard.dtype);
  for (const ShardSlice& slice :
       SlicesOf(plan_.units(unit), parts_.planned.layouts[unit], parts_.assignment.shard_index())) {
    const auto change = changes->parameters.find(slice.parameter);
    if (change == changes->parameters.end()) continue;
    std::memcpy(shard.data + slice.offset * element,
                change->second->bytes.data() + slice.begin * element, slice.numel * element);
  }
  EndWriting(unit);
  return absl::OkStatus();
}

absl::Status WriteBack(Session& session, absl::Span<const SummonedParameter> changed) {
  return SessionAccess::Of(session).WriteBack(changed);
}

}  // namespace tessera
