#include "worker/shard_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "worker/collectives/cpu_kernels.h"

namespace tessera {

std::vector<char*> ResidentSlices(const v1::Layout& layout, const std::vector<v1::Unit>& units,
                                  const std::vector<v1::UnitLayout>& layouts, int shard_index,
                                  char* unsharded) {
  std::vector<char*> slices;
  if (layout.unshard_mode() != v1::RESIDENT) return slices;
  slices.resize(units.size(), nullptr);
  for (const v1::Slot& slot : layout.unsharded_slots()) {
    const int64_t bytes = DTypeBytes(units[slot.unit()].param_dtype());
    slices[slot.unit()] =
        unsharded + slot.offset_bytes() + shard_index * layouts[slot.unit()].shard_numel() * bytes;
  }
  return slices;
}

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
                  layout.optimizer_offset_bytes() + file.optimizer_arrays() * shard});
    if (end > bytes || (1 + file.optimizer_arrays()) * shard > file.undo_bytes()) {
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

bool ShardStore::MasterIsSlice(int unit) const {
  return !options_.slices.empty() && options_.units[unit].param_dtype() == v1::FLOAT32;
}

uint16_t* ShardStore::ComputeSlice(int unit) const {
  if (options_.slices.empty() || MasterIsSlice(unit)) return nullptr;
  return reinterpret_cast<uint16_t*>(options_.slices[unit]);
}

ShardSpan ShardStore::Parameters(int unit) const {
  char* const own = options_.file.data() + options_.layouts[unit].parameter_offset_bytes();
  return {.data = MasterIsSlice(unit) ? options_.slices[unit] : own,
          .numel = options_.layouts[unit].shard_numel(),
          .dtype = v1::FLOAT32};
}

ShardSpan ShardStore::Gradients(int unit) const {
  return {.data = options_.file.data() + options_.layouts[unit].gradient_offset_bytes(),
          .numel = options_.layouts[unit].shard_numel(),
          .dtype = v1::FLOAT32};
}

absl::Span<float> ShardStore::State(int unit, int array) const {
  const v1::UnitLayout& layout = options_.layouts[unit];
  const int64_t bytes = layout.shard_numel() * static_cast<int64_t>(sizeof(float));
  return At(layout.optimizer_offset_bytes() + array * bytes, unit);
}

Vote ShardStore::MeasureGradients() const {
  Vote vote;
  for (size_t unit = 0; unit < options_.units.size(); ++unit) {
    const absl::Span<float> gradients = Gradients(static_cast<int>(unit)).as<float>();
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

float* ShardStore::Undo() const {
  return reinterpret_cast<float*>(options_.file.data() +
                                  options_.layout.rank_file().undo_offset_bytes());
}

void ShardStore::SaveUndo(int unit) {
  const int64_t shard = options_.layouts[unit].shard_numel();
  float* undo = std::copy_n(Parameters(unit).as<float>().data(), shard, Undo());
  for (int array = 0; array < state_arrays(); ++array) {
    undo = std::copy_n(State(unit, array).data(), shard, undo);
  }
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
    const float* undo = Undo();
    std::copy_n(undo, shard, Parameters(unit).as<float>().data());
    for (int array = 0; array < state_arrays(); ++array) {
      undo += shard;
      std::copy_n(undo, shard, State(unit, array).data());
    }
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  header().undo_unit = 0;
}

void ShardStore::ApplyUnit(int unit, const StepRecord& record) {
  const UpdateStep step = {.update = record.update,
                           .learning_rate = record.learning_rate,
                           .gradient_scale = record.clip_coefficient};
  for (const Segment& segment : segments_[unit]) {
    UpdateRun run;
    run.numel = segment.numel;
    run.decay = segment.decay;
    run.gradient = Gradients(unit).as<float>().data() + segment.begin;
    run.parameter = Parameters(unit).as<float>().data() + segment.begin;
    for (int array = 0; array < state_arrays(); ++array) {
      run.state[array] = State(unit, array).data() + segment.begin;
    }
    if (ComputeSlice(unit) != nullptr) {
      run.copy = ComputeSlice(unit) + segment.begin;
      run.copy_dtype = options_.units[unit].param_dtype();
    }
    UpdateElements(options_.optimizer, step, run);
  }
}

void ShardStore::WriteComputeSlices() {
  for (int unit = 0; unit < static_cast<int>(options_.units.size()); ++unit) {
    if (ComputeSlice(unit) == nullptr) continue;
    const absl::Span<float> master = Parameters(unit).as<float>();
    CastFloat32(master.data(), static_cast<int64_t>(master.size()),
                options_.units[unit].param_dtype(), ComputeSlice(unit));
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
