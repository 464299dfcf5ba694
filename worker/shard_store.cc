#include "worker/shard_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/status_macros.h"

namespace tessera {

// The first page of the rank file. Fields are written in the order that a reader of a file left
// behind can rely on; the fences keep the compiler to it (the memory outlives the process, so there
// is no processor to race with).
struct ShardStore::Header {
  StepRecord record;
  Vote vote;
  int64_t
      undo_unit;  // unit + 1 while the undo buffer holds what a unit was before its update; 0: none
};

ShardStore::ShardStore(Options options)
    : options_(std::move(options)),
      faults_(options_.faults != nullptr ? *options_.faults : no_faults_) {
  ComputeSegments();
}

absl::StatusOr<std::unique_ptr<ShardStore>> ShardStore::Create(Options options) {
  static_assert(sizeof(Header) <= kPageBytes);
  const int64_t bytes = static_cast<int64_t>(options.file.size());
  const v1::RankFileLayout& file = options.layout.rank_file();
  const int64_t units = static_cast<int64_t>(options.units.size());
  if (file.total_bytes() > bytes || StepRecordBytes(units) > file.record_bytes() ||
      file.undo_offset_bytes() + file.undo_bytes() > bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rank file of ", bytes, " bytes is shorter than its layout"));
  }
  for (const v1::UnitLayout& layout : options.layouts) {
    const int64_t shard = layout.shard_numel() * static_cast<int64_t>(sizeof(float));
    const int64_t end =
        std::max({layout.parameter_offset_bytes() + shard, layout.gradient_offset_bytes() + shard,
                  layout.optimizer_offset_bytes() + 2 * shard});
    if (end > bytes || 3 * shard > file.undo_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unit \"", layout.fqn(), "\" reaches beyond the rank file"));
    }
  }
  return std::unique_ptr<ShardStore>(new ShardStore(std::move(options)));
}

void ShardStore::ComputeSegments() {
  segments_.resize(options_.units.size());
  for (size_t unit = 0; unit < options_.units.size(); ++unit) {
    const v1::UnitLayout& layout = options_.layouts[unit];
    const int64_t shard_begin = options_.shard_index * layout.shard_numel();
    const int64_t shard_end = shard_begin + layout.shard_numel();
    for (int p = 0; p < layout.parameters_size(); ++p) {
      const v1::UnitParameter& parameter = options_.units[unit].parameters(p);
      if (!parameter.requires_grad()) continue;
      const int64_t begin = std::max(layout.parameters(p).offset(), shard_begin);
      const int64_t end = std::min(layout.parameters(p).offset() + parameter.numel(), shard_end);
      if (begin < end)
        segments_[unit].push_back({begin - shard_begin, end - begin, parameter.shape_size() >= 2});
    }
  }
}

ShardStore::Header& ShardStore::header() const {
  return *reinterpret_cast<Header*>(options_.file.data());
}

int64_t& ShardStore::Tag(int unit) const {
  return reinterpret_cast<int64_t*>(options_.file.data() + kPageBytes)[unit];
}

int64_t ShardStore::StepTag(int unit) const { return Tag(unit); }

absl::Span<float> ShardStore::At(int64_t offset_bytes, int unit) const {
  return absl::MakeSpan(reinterpret_cast<float*>(options_.file.data() + offset_bytes),
                        options_.layouts[unit].shard_numel());
}

absl::Span<float> ShardStore::Parameters(int unit) const {
  return At(options_.layouts[unit].parameter_offset_bytes(), unit);
}

absl::Span<float> ShardStore::Gradients(int unit) const {
  return At(options_.layouts[unit].gradient_offset_bytes(), unit);
}

absl::Span<float> ShardStore::ExpAvg(int unit) const {
  return At(options_.layouts[unit].optimizer_offset_bytes(), unit);
}

absl::Span<float> ShardStore::ExpAvgSq(int unit) const {
  const v1::UnitLayout& layout = options_.layouts[unit];
  return At(
      layout.optimizer_offset_bytes() + layout.shard_numel() * static_cast<int64_t>(sizeof(float)),
      unit);
}

Vote ShardStore::MeasureGradients() const {
  Vote vote;
  for (size_t unit = 0; unit < options_.units.size(); ++unit) {
    const absl::Span<float> gradients = Gradients(static_cast<int>(unit));
    for (const Segment& segment : segments_[unit]) {
      double sum = 0;
      for (int64_t i = 0; i < segment.numel; ++i) {
        const double g = gradients[segment.begin + i];
        sum += g * g;
      }
      vote.squared_norm += sum;
    }
  }
  // Squares of finite floats are finite doubles, and so is any sum of them that a memory can hold.
  vote.non_finite = std::isfinite(vote.squared_norm) ? 0 : 1;
  return vote;
}

void ShardStore::CastVote(const Vote& vote, const StepRecord& record) {
  header().record = record;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header().vote = vote;
}

void ShardStore::Decide(bool skip, double clip_coefficient) {
  StepRecord& record = header().record;
  record.skip = skip ? 1 : 0;
  record.clip_coefficient = clip_coefficient;
  // A skipped step takes no number of the optimizer's.
  if (skip) --record.update;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

Vote ShardStore::LastVote() const { return header().vote; }
StepRecord ShardStore::LastRecord() const { return header().record; }

void ShardStore::SaveUndo(int unit) {
  const int64_t shard = options_.layouts[unit].shard_numel();
  float* undo = reinterpret_cast<float*>(options_.file.data() +
                                         options_.layout.rank_file().undo_offset_bytes());
  std::copy_n(Parameters(unit).data(), shard, undo);
  std::copy_n(ExpAvg(unit).data(), shard, undo + shard);
  std::copy_n(ExpAvgSq(unit).data(), shard, undo + 2 * shard);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header().undo_unit = unit + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void ShardStore::RestoreUndo() {
  const int unit = static_cast<int>(header().undo_unit) - 1;
  if (unit < 0) return;
  // A tag that says the step was applied means that the process ended between tag and flag: the
  // update is whole.
  if (Tag(unit) != header().record.step) {
    const int64_t shard = options_.layouts[unit].shard_numel();
    const float* undo = reinterpret_cast<const float*>(
        options_.file.data() + options_.layout.rank_file().undo_offset_bytes());
    std::copy_n(undo, shard, Parameters(unit).data());
    std::copy_n(undo + shard, shard, ExpAvg(unit).data());
    std::copy_n(undo + 2 * shard, shard, ExpAvgSq(unit).data());
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  header().undo_unit = 0;
}

void ShardStore::ApplyUnit(int unit, const StepRecord& record) {
  for (const Segment& segment : segments_[unit]) {
    AdamW(options_.optimizer, record.update, record.learning_rate, segment.decay, segment.numel,
          Gradients(unit).data() + segment.begin, Parameters(unit).data() + segment.begin,
          ExpAvg(unit).data() + segment.begin, ExpAvgSq(unit).data() + segment.begin);
  }
}

void ShardStore::FinishStep(absl::FunctionRef<void(int unit, double us)> timed) {
  RestoreUndo();
  const StepRecord record = header().record;
  for (int unit = 0; unit < static_cast<int>(options_.units.size()); ++unit) {
    if (Tag(unit) == record.step) continue;
    const auto start = std::chrono::steady_clock::now();
    if (record.skip == 0 && !segments_[unit].empty()) {
      SaveUndo(unit);
      faults_.Hit("undo_written");
      ApplyUnit(unit, record);
      faults_.Hit("optimizer");
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    Tag(unit) = record.step;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    header().undo_unit = 0;
    timed(unit, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                    .count());
  }
  faults_.Hit("optimizer_done");
}

}  // namespace tessera
