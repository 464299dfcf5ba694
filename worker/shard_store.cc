#include "worker/shard_store.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/dtype.h"
#include "common/optimizer_state.h"
#include "common/status_macros.h"
#include "common/unit_dtypes.h"
#include "worker/collectives/cpu_kernels.h"
#include "worker/norm.h"

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
  StepRecord records[2];  // by the step's parity
  Vote votes[2];
  int64_t undo_unit;  // unit + 1 while the undo buffer holds what a unit was before its update;
                      // 0: none
  int64_t filled;     // 1: `start` is set
  FilledWith start;
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
  for (size_t unit = 0; unit < options.layouts.size(); ++unit) {
    const v1::UnitLayout& layout = options.layouts[unit];
    const DType original = OriginalDType(options.units[unit]);
    const int64_t numel = layout.shard_numel();
    const int64_t shard = numel * DTypeBytes(original);
    const int64_t state =
        file.optimizer_arrays() * numel * DTypeBytes(OptimizerStateDType(original));
    const int64_t gradient = numel * DTypeBytes(GradientDType(options.units[unit]));
    const int64_t end = std::max({layout.parameter_offset_bytes() + shard,
                                  layout.gradient_offset_bytes() + gradient,
                                  layout.optimizer_offset_bytes() + state});
    if (end > bytes || shard + state > file.undo_bytes()) {
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
      if (begin >= end) continue;
      const ParameterSettings settings = options_.groups.SettingsOf(parameter);
      const double decay = parameter.shape_size() >= 2 ? options_.optimizer.weight_decay : 0;
      segments_[unit].push_back({.begin = begin - shard_begin,
                                 .numel = end - begin,
                                 .lr_scale = settings.lr_scale,
                                 .weight_decay = settings.weight_decay.value_or(decay)});
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

ShardSpan ShardStore::At(int64_t offset_bytes, int unit, DType dtype) const {
  return {.data = options_.file.data() + offset_bytes,
          .numel = options_.layouts[unit].shard_numel(),
          .dtype = dtype};
}

bool ShardStore::MasterIsSlice(int unit) const {
  const v1::Unit& planned = options_.units[unit];
  return !options_.slices.empty() && planned.param_dtype() == OriginalDType(planned);
}

char* ShardStore::ComputeSlice(int unit) const {
  return options_.slices.empty() || MasterIsSlice(unit) ? nullptr : options_.slices[unit];
}

ShardSpan ShardStore::Parameters(int unit) const {
  ShardSpan master = At(options_.layouts[unit].parameter_offset_bytes(), unit,
                        OriginalDType(options_.units[unit]));
  if (MasterIsSlice(unit)) master.data = options_.slices[unit];
  return master;
}

ShardSpan ShardStore::Gradients(int unit) const {
  return At(options_.layouts[unit].gradient_offset_bytes(), unit,
            GradientDType(options_.units[unit]));
}

ShardSpan ShardStore::State(int unit, int array) const {
  ShardSpan state = At(options_.layouts[unit].optimizer_offset_bytes(), unit,
                       OptimizerStateDType(OriginalDType(options_.units[unit])));
  state.data += array * state.bytes();
  return state;
}

std::vector<ShardSpan> ShardStore::Updated(int unit) const {
  std::vector<ShardSpan> spans = {Parameters(unit)};
  for (int array = 0; array < state_arrays(); ++array) spans.push_back(State(unit, array));
  return spans;
}

Vote ShardStore::MeasureGradients() const {
  NormSum norm(options_.norm_type);
  for (size_t unit = 0; unit < options_.units.size(); ++unit) {
    const ShardSpan gradients = Gradients(static_cast<int>(unit));
    for (const Segment& segment : segments_[unit]) {
      norm.Add({.data = gradients.data + segment.begin * DTypeBytes(gradients.dtype),
                .numel = segment.numel,
                .dtype = gradients.dtype});
    }
  }
  Vote vote;
  vote.norm_term = norm.term();
  // Squares of finite floats are finite doubles, and so is any sum of them that a memory can hold.
  // (Of float64, what has no finite square counts as infinite.)
  vote.non_finite = std::isfinite(norm.term()) ? 0 : 1;
  return vote;
}

Vote& ShardStore::VoteAt(int64_t step) const { return header().votes[step % 2]; }
StepRecord& ShardStore::RecordAt(int64_t step) const { return header().records[step % 2]; }

void ShardStore::CastVote(const Vote& vote, const StepRecord& record) {
  Vote& kept = VoteAt(vote.step);
  kept.step = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  RecordAt(vote.step) = record;
  Vote begun = vote;
  begun.step = 0;
  kept = begun;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  kept.step = vote.step;
}

void ShardStore::Decide(int64_t step, bool skip, double clip_coefficient) {
  StepRecord& record = RecordAt(step);
  record.skip = skip ? 1 : 0;
  record.clip_coefficient = clip_coefficient;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

Vote ShardStore::LastVote() const {
  const Header& kept = header();
  return kept.votes[kept.votes[1].step > kept.votes[0].step ? 1 : 0];
}

Vote ShardStore::VoteOf(int64_t step) const {
  return step > 0 && VoteAt(step).step == step ? VoteAt(step) : Vote();
}

StepRecord ShardStore::LastRecord() const { return RecordOf(LastVote().step); }

StepRecord ShardStore::RecordOf(int64_t step) const {
  return VoteOf(step).step == step && step > 0 ? RecordAt(step) : StepRecord();
}

void ShardStore::StartFrom(const FilledWith& start) {
  Header& kept = header();
  kept.filled = 0;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  for (const int parity : {0, 1}) {
    kept.votes[parity] = Vote();
    kept.records[parity] = StepRecord();
  }
  kept.undo_unit = 0;
  for (size_t unit = 0; unit < options_.units.size(); ++unit)
    Tag(static_cast<int>(unit)) = start.step;
  kept.start = start;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  kept.filled = 1;
}

std::optional<FilledWith> ShardStore::filled() const {
  if (header().filled == 0) return std::nullopt;
  return header().start;
}

void ShardStore::SaveUndo(int unit) {
  char* undo = options_.file.data() + options_.layout.rank_file().undo_offset_bytes();
  for (const ShardSpan& span : Updated(unit)) {
    undo = std::copy_n(span.data, span.bytes(), undo);
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header().undo_unit = unit + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void ShardStore::RestoreUndo(int64_t step) {
  const int unit = static_cast<int>(header().undo_unit) - 1;
  if (unit < 0) return;
  // A tag that says the step was applied means that the process ended between tag and flag: the
  // update is whole.
  if (Tag(unit) != step) {
    const char* undo = options_.file.data() + options_.layout.rank_file().undo_offset_bytes();
    for (const ShardSpan& span : Updated(unit)) {
      std::copy_n(undo, span.bytes(), span.data);
      undo += span.bytes();
    }
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  header().undo_unit = 0;
}

void ShardStore::ApplyUnit(int unit, const StepRecord& record) {
  const auto at = [](const ShardSpan& span, int64_t element) {
    return span.data + element * DTypeBytes(span.dtype);
  };
  const ShardSpan master = Parameters(unit), gradients = Gradients(unit);
  const DType param_dtype = options_.units[unit].param_dtype();
  for (const Segment& segment : segments_[unit]) {
    const UpdateStep step = {.update = record.update,
                             .learning_rate = record.learning_rate * segment.lr_scale,
                             .gradient_scale = record.clip_coefficient / record.loss_scale};
    OptimizerOptions optimizer = options_.optimizer;
    optimizer.weight_decay = segment.weight_decay;
    UpdateRun run;
    run.numel = segment.numel;
    run.decay = segment.weight_decay != 0;
    run.gradient = at(gradients, segment.begin);
    run.gradient_dtype = gradients.dtype;
    run.parameter = at(master, segment.begin);
    run.parameter_dtype = master.dtype;
    for (int array = 0; array < state_arrays(); ++array) {
      run.state[array] = at(State(unit, array), segment.begin);
    }
    if (ComputeSlice(unit) != nullptr) {
      run.copy = ComputeSlice(unit) + segment.begin * DTypeBytes(param_dtype);
      run.copy_dtype = param_dtype;
    }
    UpdateElements(optimizer, step, run);
  }
}

void ShardStore::WriteComputeSlices() {
  for (int unit = 0; unit < static_cast<int>(options_.units.size()); ++unit)
    WriteComputeSlice(unit);
}

void ShardStore::WriteComputeSlice(int unit) {
  if (ComputeSlice(unit) == nullptr) return;
  const ShardSpan master = Parameters(unit);
  CastElements(master.data, master.dtype, master.numel, options_.units[unit].param_dtype(),
               ComputeSlice(unit));
}

void ShardStore::FinishStep(int64_t step, absl::FunctionRef<void(int unit, double us)> timed) {
  RestoreUndo(step);
  const StepRecord record = RecordAt(step);
  for (int unit = 0; unit < static_cast<int>(options_.units.size()); ++unit) {
    if (Tag(unit) == step) continue;
    const auto start = std::chrono::steady_clock::now();
    if (record.skip == 0 && !segments_[unit].empty()) {
      SaveUndo(unit);
      faults_.Hit("undo_written");
      ApplyUnit(unit, record);
      faults_.Hit("optimizer");
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    Tag(unit) = step;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    header().undo_unit = 0;
    timed(unit, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                    .count());
  }
  faults_.Hit("optimizer_done");
}

}  // namespace tessera
