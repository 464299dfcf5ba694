#include "coordinator/fit.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/byte_count.h"
#include "common/dtype.h"
#include "common/job_spec.h"
#include "common/status_macros.h"
#include "coordinator/layout.h"
#include "coordinator/mesh.h"
#include "coordinator/planner.h"

namespace tessera {
namespace {

// 0 where none is given; resolved jobs have good ones.
int64_t DeviceMemory(const v1::JobSpec& resolved) {
  if (resolved.memory().device_memory().empty()) return 0;
  return ParseByteCount(resolved.memory().device_memory()).value_or(0);
}

std::string NameOf(const v1::Unit& unit) {
  return unit.fqn().empty() ? "the root" : absl::StrCat("\"", unit.fqn(), "\"");
}

// "h.3" as "h.*.*": what is directly inside it and inside those beside it that differ in a number.
std::string InsideOf(const std::string& fqn) {
  std::string pattern;
  for (const absl::string_view segment : absl::StrSplit(fqn, '.', absl::SkipEmpty())) {
    const bool number = std::all_of(segment.begin(), segment.end(), absl::ascii_isdigit);
    absl::StrAppend(&pattern, number ? "*" : segment, ".");
  }
  return pattern + "*";
}

// Ascending.
std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t small = 1; small * small <= number; ++small) {
    if (number % small != 0) continue;
    divisors.push_back(small);
    if (small * small != number) divisors.push_back(number / small);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

// memory.unshard auto takes slots where resident does not fit and slots need less.
absl::StatusOr<FittedLayout> ChooseUnshard(const v1::Plan& plan, const v1::JobSpec& resolved,
                                           int world_size, ForecastOptions options) {
  FittedLayout fitted;
  TESSERA_ASSIGN_OR_RETURN(fitted.layout, MakeLayout(plan, resolved, world_size));
  fitted.options = std::move(options);
  fitted.needed_bytes = NeededBytes(plan, fitted.layout, fitted.options);
  const int64_t memory = DeviceMemory(resolved);
  if (memory == 0 || fitted.needed_bytes <= memory || resolved.memory().unshard() != "auto" ||
      fitted.layout.unshard_mode() != v1::RESIDENT) {
    return fitted;
  }
  v1::JobSpec in_slots = resolved;
  in_slots.mutable_memory()->set_unshard("slots");
  TESSERA_ASSIGN_OR_RETURN(v1::Layout slots, MakeLayout(plan, in_slots, world_size));
  const int64_t needed = NeededBytes(plan, slots, fitted.options);
  if (needed >= fitted.needed_bytes) return fitted;
  fitted.resident_needed_bytes = fitted.needed_bytes;
  fitted.needed_bytes = needed;
  fitted.layout = std::move(slots);
  return fitted;
}

// Looks for changes of a job that make it need less.
class RemedyFinder {
 public:
  RemedyFinder(const v1::ModelSpec& model, const v1::Plan& plan, const v1::JobSpec& resolved,
               const FittedLayout& fitted)
      : model_(model),
        plan_(plan),
        resolved_(resolved),
        fitted_(fitted),
        world_size_(fitted.layout.world_size()),
        memory_(DeviceMemory(resolved)) {}

  std::vector<v1::Remedy> Find() {
    Ranks();
    Slots();
    Strategy();
    Recompute();
    Precision();
    Batch();
    Prefetch();
    Accumulation();
    SplitLargest();
    const bool any = std::any_of(remedies_.begin(), remedies_.end(),
                                 [](const v1::Remedy& remedy) { return remedy.fits(); });
    if (!any) Together();
    return std::move(remedies_);
  }

 private:
  // Planned anew only where the plan changes.
  std::optional<int64_t> Needed(const v1::JobSpec& job, int world_size) const {
    const bool same_plan =
        job.mixed_precision().param_dtype() == resolved_.mixed_precision().param_dtype() &&
        job.wrap().wrap_patterns_size() == resolved_.wrap().wrap_patterns_size();
    absl::StatusOr<v1::Plan> changed;
    if (!same_plan) changed = MakePlan(model_, job);
    if (!same_plan && !changed.ok()) return std::nullopt;
    const v1::Plan& plan = same_plan ? plan_ : *changed;
    // Activations of a given batch are the same on any number of ranks.
    const bool same_activations =
        same_plan && !job.model().has_builtin() &&
        job.activations().batch() == resolved_.activations().batch() &&
        job.activations().recompute() == resolved_.activations().recompute();
    const auto fitted = ChooseUnshard(
        plan, job, world_size,
        same_activations ? fitted_.options : ForecastOptionsOf(model_, plan, job, world_size));
    if (!fitted.ok()) return std::nullopt;
    return fitted->needed_bytes;
  }

  // Keeps what helps. A change of a field is also part of what is done together.
  void Add(const std::string& field, const std::string& value, const std::string& text,
           std::optional<int64_t> needed, std::function<void(v1::JobSpec*)> change = nullptr,
           int world_size = 0) {
    if (!needed.has_value() || *needed >= fitted_.needed_bytes) return;
    v1::Remedy& remedy = remedies_.emplace_back();
    remedy.set_field(field);
    remedy.set_value(value);
    remedy.set_text(text);
    remedy.set_needed_bytes(*needed);
    remedy.set_fits(*needed <= memory_);
    if (change == nullptr) return;
    changes_.push_back(std::move(change));
    if (world_size > 0) together_world_size_ = world_size;
  }

  void Try(const std::string& field, const std::string& value, const std::string& text,
           const std::function<void(v1::JobSpec*)>& change) {
    v1::JobSpec job = resolved_;
    change(&job);
    Add(field, value, text, Needed(job, world_size_), change);
  }

  // The smallest number of ranks that fits; if none does, the most that there can be.
  void Ranks() {
    const v1::MeshSpec& mesh = resolved_.mesh();
    if (fitted_.layout.sharding_strategy() == v1::NO_SHARD) return;
    const bool one_host = fitted_.layout.device() != v1::CUDA && mesh.local_world_size() == 0;
    const auto change = [one_host, this](v1::JobSpec* job) {
      // More ranks on the same host would share the same memory.
      if (one_host) job->mutable_mesh()->set_local_world_size(world_size_);
    };
    v1::JobSpec job = resolved_;
    change(&job);
    const int64_t step = one_host                      ? world_size_
                         : mesh.local_world_size() > 0 ? mesh.local_world_size()
                                                       : std::max<int64_t>(1, mesh.replicas());
    const auto fits = [&](int64_t steps) {
      const std::optional<int64_t> needed = Needed(job, static_cast<int>(steps * step));
      return needed.has_value() && *needed <= memory_;
    };
    const int64_t most = kMaxWorkers / step;
    int64_t low = world_size_ / step;
    int64_t high = std::max<int64_t>(low, 1);
    while (high < most && !fits(high)) {
      low = high;
      high = std::min(2 * high, most);
    }
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? high : low) = middle;
    }
    const int workers = static_cast<int>(high * step);
    if (workers <= world_size_) return;
    Add("mesh.max_workers", absl::StrCat(workers),
        absl::StrCat(workers, " workers instead of ", world_size_,
                     one_host ? absl::StrCat(", on hosts of ", world_size_) : "",
                     "; global_batch has to be a multiple"),
        Needed(job, workers), change, workers);
  }

  void Slots() {
    if (fitted_.layout.unshard_mode() != v1::RESIDENT) return;
    Try("memory.unshard", "slots", "units take turns in slots instead of staying whole",
        [](v1::JobSpec* job) { job->mutable_memory()->set_unshard("slots"); });
  }

  void Strategy() {
    const v1::ShardingStrategy strategy = fitted_.layout.sharding_strategy();
    const auto take = [&](const std::string& name, const std::string& text) {
      Try("mesh.strategy", name, text, [name](v1::JobSpec* job) {
        job->mutable_mesh()->set_strategy(name);
        job->mutable_mesh()->set_replicas(1);
      });
    };
    if (strategy == v1::HYBRID_SHARD_ZERO2) {
      take("hybrid_shard", "units are sharded again between forward and backward");
    }
    if (strategy == v1::FULL_SHARD) return;
    take("full_shard", strategy == v1::SHARD_GRAD_OP
                           ? "units are sharded again between forward and backward"
                           : "everything is sharded over all ranks");
  }

  void Recompute() {
    const bool off = resolved_.activations().recompute() != "unit";
    if (!off || fitted_.options.activations.total == 0) return;
    Try("activations.recompute", "unit",
        "the program computes a unit's activations again in its backward",
        [](v1::JobSpec* job) { job->mutable_activations()->set_recompute("unit"); });
  }

  void Precision() {
    const bool wide =
        std::any_of(plan_.units().begin(), plan_.units().end(), [](const v1::Unit& unit) {
          return unit.numel() > 0 && DTypeBytes(unit.param_dtype()) > 2;
        });
    if (!wide) return;
    Try("mixed_precision.param_dtype", "bfloat16",
        "units are whole in bfloat16, and so are their gradients",
        [](v1::JobSpec* job) { job->mutable_mixed_precision()->set_param_dtype("bfloat16"); });
  }

  // The largest batch that fits, or one sequence.
  void Batch() {
    if (resolved_.model().has_builtin() && !resolved_.activations().has_batch()) {
      return MoreMicroBatches();
    }
    const auto with = [this](int64_t batch) {
      v1::JobSpec job = resolved_;
      job.mutable_activations()->set_batch(batch);
      return Needed(job, world_size_);
    };
    int64_t low = 0;
    int64_t high = resolved_.activations().batch();
    if (high <= 1) return;
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      const std::optional<int64_t> needed = with(middle);
      (needed.has_value() && *needed <= memory_ ? low : high) = middle;
    }
    const int64_t batch = std::max<int64_t>(low, 1);
    Add("activations.batch", absl::StrCat(batch),
        absl::StrCat(batch, " sequences a rank and micro-batch instead of ",
                     resolved_.activations().batch()),
        with(batch), [batch](v1::JobSpec* job) { job->mutable_activations()->set_batch(batch); });
  }

  // The fewest micro-batches that fit, or one sequence in each.
  void MoreMicroBatches() {
    if (resolved_.global_batch() % world_size_ != 0) return;
    const int64_t sequences = resolved_.global_batch() / world_size_;
    const auto with = [this](int64_t count) {
      v1::JobSpec job = resolved_;
      job.set_micro_batches(count);
      return Needed(job, world_size_);
    };
    std::vector<int64_t> counts = DivisorsOf(sequences);
    counts.erase(counts.begin(),
                 std::upper_bound(counts.begin(), counts.end(), resolved_.micro_batches()));
    if (counts.empty()) return;
    const auto found = std::partition_point(counts.begin(), counts.end() - 1, [&](int64_t count) {
      const std::optional<int64_t> needed = with(count);
      return !needed.has_value() || *needed > memory_;
    });
    const int64_t count = *found;
    Add("micro_batches", absl::StrCat(count),
        absl::StrCat(sequences / count, " sequences a rank and micro-batch"), with(count),
        [count](v1::JobSpec* job) { job->set_micro_batches(count); });
  }

  void Prefetch() {
    if (fitted_.layout.prefetch() == 0) return;
    Try("memory.prefetch", "0", "no unit is gathered before it is used",
        [](v1::JobSpec* job) { job->mutable_memory()->set_prefetch(0); });
  }

  void Accumulation() {
    if (!resolved_.memory().accumulate_unsynchronized()) return;
    Try("memory.accumulate_unsynchronized", "false", "every micro-batch reduces its gradients",
        [](v1::JobSpec* job) { job->mutable_memory()->set_accumulate_unsynchronized(false); });
  }

  // Units of what is inside the largest one, and inside those that are numbered like it.
  void SplitLargest() {
    int largest = -1;
    int64_t most = 0;
    for (int i = 0; i < plan_.units_size(); ++i) {
      const int64_t bytes =
          fitted_.layout.units(i).padded_numel() * DTypeBytes(plan_.units(i).param_dtype());
      if (bytes <= most) continue;
      most = bytes;
      largest = i;
    }
    if (largest < 0) return;
    const std::string pattern = InsideOf(plan_.units(largest).fqn());
    Try("wrap.wrap_patterns", absl::StrCat("[\"", pattern, "\"]"),
        absl::StrCat("the modules inside ", NameOf(plan_.units(largest)), " of ",
                     FormatByteCount(most), ", the largest unit, are units"),
        [pattern](v1::JobSpec* job) { job->mutable_wrap()->add_wrap_patterns(pattern); });
  }

  void Together() {
    if (changes_.size() < 2) return;
    v1::JobSpec job = resolved_;
    for (const auto& change : changes_) change(&job);
    const std::optional<int64_t> needed =
        Needed(job, together_world_size_ > 0 ? together_world_size_ : world_size_);
    std::string fields;
    for (const v1::Remedy& remedy : remedies_) {
      absl::StrAppend(&fields, fields.empty() ? "" : ", ", remedy.field(), " ", remedy.value());
    }
    Add("", "", absl::StrCat("together: ", fields), needed);
  }

  const v1::ModelSpec& model_;
  const v1::Plan& plan_;
  const v1::JobSpec& resolved_;
  const FittedLayout& fitted_;
  const int world_size_;
  const int64_t memory_;
  std::vector<v1::Remedy> remedies_;
  std::vector<std::function<void(v1::JobSpec*)>> changes_;
  int together_world_size_ = 0;
};

std::string DeviceOf(const v1::Layout& layout) {
  if (layout.device() == v1::CUDA) return "a GPU";
  const int ranks = MeshOf(layout).RanksOf(0);
  return absl::StrCat("a host of ", ranks, ranks == 1 ? " rank" : " ranks");
}

}  // namespace

absl::StatusOr<FittedLayout> LayOutToFit(const v1::ModelSpec& model, const v1::Plan& plan,
                                         const v1::JobSpec& resolved, int world_size) {
  TESSERA_RETURN_IF_ERROR(MakeMesh(resolved.mesh(), world_size).status());
  return ChooseUnshard(plan, resolved, world_size,
                       ForecastOptionsOf(model, plan, resolved, world_size));
}

v1::Fit MakeFit(const v1::ModelSpec& model, const v1::Plan& plan, const v1::JobSpec& resolved,
                const FittedLayout& fitted) {
  v1::Fit fit;
  fit.set_device_memory_bytes(DeviceMemory(resolved));
  fit.set_needed_bytes(fitted.needed_bytes);
  fit.set_device(DeviceOf(fitted.layout));
  if (fit.needed_bytes() <= fit.device_memory_bytes()) return fit;
  for (v1::Remedy& remedy : RemedyFinder(model, plan, resolved, fitted).Find()) {
    *fit.add_remedies() = std::move(remedy);
  }
  return fit;
}

std::vector<std::string> FitNotes(const v1::Forecast& forecast) {
  const v1::Fit& fit = forecast.fit();
  const bool known = forecast.activation_certainty() != v1::Forecast::UNKNOWN;
  const int64_t left = fit.device_memory_bytes() - fit.needed_bytes();
  std::vector<std::string> notes = {absl::StrCat(
      "memory.device_memory: ", fit.device(), " needs ", FormatByteCount(fit.needed_bytes()),
      " of ", FormatByteCount(fit.device_memory_bytes()), ", which ",
      left >= 0 ? "fits" : "does not fit",
      known ? "."
            : absl::StrCat(
                  "; activations that are not known are not counted",
                  left >= 0 ? absl::StrCat(", and ", left, " bytes are left for them.") : "."))};
  for (const v1::Remedy& remedy : fit.remedies()) {
    notes.push_back(absl::StrCat(
        remedy.field().empty() ? "" : absl::StrCat(remedy.field(), " ", remedy.value(), ": "),
        remedy.text(), "; ", FormatByteCount(remedy.needed_bytes()),
        remedy.fits() ? ", which would fit." : ", which would not suffice."));
  }
  return notes;
}

}  // namespace tessera
