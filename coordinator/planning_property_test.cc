// Random module trees, policies and alignments: what every plan, layout and forecast must hold,
// checked against the tree by means of names alone. The same seeds at each run.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/control_file.h"
#include "common/dtype.h"
#include "common/fingerprint.h"
#include "common/flat_layout.h"
#include "common/job_spec.h"
#include "common/model_spec.h"
#include "coordinator/job_planner.h"

namespace tessera {
namespace {

constexpr int kTrees = 300;

struct Tree {
  v1::ModelSpec model;
  std::map<std::string, int64_t> numels;            // of parameters that hold storage
  std::map<std::string, std::string> ties;          // tie -> holder
  std::map<std::string, std::string> class_by_fqn;  // of modules
};

class TreeMaker {
 public:
  explicit TreeMaker(unsigned seed) : random_(seed) {}

  int Below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }

  Tree Make() {
    Tree tree;
    tree.model.set_name("random");
    Fill(tree.model.mutable_root(), "", 0, &tree);
    if (tree.numels.empty()) AddParameter(tree.model.mutable_root(), "", "last", &tree);
    return tree;
  }

  v1::JobSpec Job(const Tree& tree) {
    v1::JobSpec job;
    job.set_name("random");
    *job.mutable_model()->mutable_spec() = tree.model;
    std::set<std::string> classes;
    for (const auto& [fqn, name] : tree.class_by_fqn) classes.insert(name);
    for (const std::string& name : classes) {
      if (Below(2) == 0) job.mutable_wrap()->add_wrap_classes(name);
    }
    job.mutable_wrap()->set_policy(job.wrap().wrap_classes().empty() ? "none" : "class");
    constexpr int64_t kAligns[] = {0, 4, 16, 48, 128, 4096};
    job.mutable_wrap()->set_param_align_bytes(kAligns[Below(6)]);
    job.mutable_wrap()->set_shard_align_bytes(kAligns[Below(6)]);
    if (Below(3) == 0) job.mutable_mixed_precision()->set_param_dtype("bf16");
    if (Below(3) == 0) job.mutable_mixed_precision()->set_reduce_dtype("fp16");
    job.mutable_memory()->set_prefetch(Below(4));
    job.mutable_memory()->set_max_live_units(Below(2) * Below(9));
    job.mutable_memory()->set_accumulate_unsynchronized(Below(2) == 0);
    auto resolved = ResolveJobSpec(std::move(job));
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return *std::move(resolved);
  }

 private:
  void AddParameter(v1::Module* module, const std::string& fqn, const std::string& name,
                    Tree* tree) {
    v1::Parameter* parameter = module->add_parameters();
    parameter->set_name(name);
    parameter->set_dtype("float32");
    const std::string own = JoinFqn(fqn, name);
    if (!tree->numels.empty() && Below(8) == 0) {
      auto holder = std::next(tree->numels.begin(), Below(static_cast<int>(tree->numels.size())));
      parameter->set_tied_to(holder->first);
      parameter->add_shape(holder->second);
      tree->ties[own] = holder->first;
      return;
    }
    const int64_t numel = 1 + Below(200);
    parameter->add_shape(numel);
    tree->numels[own] = numel;
  }

  void Fill(v1::Module* module, const std::string& fqn, int depth, Tree* tree) {
    module->set_class_name(absl::StrCat("Class", Below(4)));
    tree->class_by_fqn[fqn] = module->class_name();
    for (int i = Below(4); i > 0; --i) AddParameter(module, fqn, absl::StrCat("p", i), tree);
    if (depth == 5) return;
    for (int i = Below(depth == 0 ? 6 : 4); i > 0; --i) {
      v1::Module* child = module->add_children();
      child->set_name(absl::StrCat("m", i));
      Fill(child, JoinFqn(fqn, child->name()), depth + 1, tree);
    }
  }

  std::mt19937 random_;
};

bool Inside(const std::string& fqn, const std::string& module) {
  return module.empty() || fqn == module || absl::StartsWith(fqn, module + ".");
}

void CheckPlan(const Tree& tree, const v1::JobSpec& job, const v1::Plan& plan) {
  std::set<std::string> classes(job.wrap().wrap_classes().begin(), job.wrap().wrap_classes().end());
  std::set<std::string> modules = {""};
  for (const auto& [fqn, name] : tree.class_by_fqn) {
    if (classes.count(name) > 0) modules.insert(fqn);
  }
  std::map<std::string, std::string> unit_of;
  std::set<std::string> seen;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    EXPECT_TRUE(seen.insert(unit.fqn()).second);
    EXPECT_NE(unit.param_dtype(), v1::DTYPE_UNSPECIFIED);
    EXPECT_NE(unit.reduce_dtype(), v1::DTYPE_UNSPECIFIED);
    int64_t numel = 0;
    for (const v1::UnitParameter& parameter : unit.parameters()) {
      EXPECT_TRUE(unit_of.emplace(parameter.fqn(), unit.fqn()).second) << parameter.fqn();
      EXPECT_TRUE(Inside(parameter.fqn(), unit.fqn()));
      for (const std::string& tied : parameter.tied_fqns()) {
        EXPECT_EQ(tree.ties.at(tied), parameter.fqn());
        EXPECT_TRUE(Inside(tied, unit.fqn())) << tied << " of " << unit.fqn();
      }
      EXPECT_EQ(parameter.numel(), tree.numels.at(parameter.fqn()));
      numel += parameter.numel();
    }
    EXPECT_EQ(unit.numel(), numel);
    // Post-order: what is inside this unit came before it, and the unit around it comes later.
    for (int j = 0; j < i; ++j) EXPECT_FALSE(Inside(unit.fqn(), plan.units(j).fqn()));
    EXPECT_EQ(unit.has_enclosing_unit(), i + 1 < plan.units_size());
    if (unit.has_enclosing_unit()) {
      EXPECT_GT(unit.enclosing_unit(), i);
      const std::string& around = plan.units(unit.enclosing_unit()).fqn();
      EXPECT_TRUE(Inside(unit.fqn(), around));
      for (int j = i + 1; j < unit.enclosing_unit(); ++j)
        EXPECT_FALSE(Inside(unit.fqn(), plan.units(j).fqn()));
    }
  }
  EXPECT_EQ(seen, modules);
  EXPECT_EQ(plan.units().rbegin()->fqn(), "");
  ASSERT_EQ(unit_of.size(), tree.numels.size());
  // The lowest unit that covers all users: the longest name that is around all of theirs.
  for (const auto& [fqn, unit] : unit_of) {
    std::string lowest;
    for (const std::string& candidate : modules) {
      bool covers = Inside(fqn, candidate);
      for (const auto& [tie, holder] : tree.ties)
        covers = covers && (holder != fqn || Inside(tie, candidate));
      if (covers && candidate.size() > lowest.size()) lowest = candidate;
    }
    EXPECT_EQ(unit, lowest) << fqn;
  }
  EXPECT_EQ(plan.plan_fingerprint(), PlanFingerprint(plan.units()));
}

void CheckUnit(const v1::Unit& unit, const v1::UnitLayout& layout, const v1::JobSpec& job,
               int shards) {
  const int64_t element = DTypeBytes(unit.param_dtype());
  EXPECT_EQ(layout.shard_numel() * shards, layout.padded_numel());
  if (job.wrap().shard_align_bytes() > 0) {
    EXPECT_EQ(layout.shard_numel() * element % job.wrap().shard_align_bytes(), 0);
  }
  std::vector<int64_t> offsets, numels;
  int64_t end = 0;
  ASSERT_EQ(layout.parameters_size(), unit.parameters_size());
  for (int i = 0; i < unit.parameters_size(); ++i) {
    EXPECT_EQ(layout.parameters(i).fqn(), unit.parameters(i).fqn());
    offsets.push_back(layout.parameters(i).offset());
    numels.push_back(unit.parameters(i).numel());
    EXPECT_GE(offsets.back(), end);
    if (job.wrap().param_align_bytes() > 0) {
      EXPECT_EQ(offsets.back() * element % job.wrap().param_align_bytes(), 0);
    } else {
      EXPECT_EQ(offsets.back(), end);
    }
    end = offsets.back() + numels.back();
  }
  EXPECT_LE(end, layout.padded_numel());
  // The shards in rank order, less the padding, are the flat parameter.
  std::vector<int64_t> found(numels.size(), 0);
  for (int shard = 0; shard < shards; ++shard) {
    const int64_t begin = shard * layout.shard_numel();
    for (const ShardRecord& record :
         ShardRecords(offsets, numels, begin, begin + layout.shard_numel())) {
      EXPECT_EQ(record.begin, found[record.parameter]);
      found[record.parameter] = record.end;
      EXPECT_LE(record.offset_in_shard + record.end - record.begin, layout.shard_numel());
    }
  }
  EXPECT_EQ(found, numels);
}

// Half-open intervals of bytes that must not overlap.
class Intervals {
 public:
  void Add(int64_t offset, int64_t bytes, int64_t align) {
    if (bytes == 0) return;
    EXPECT_EQ(offset % align, 0);
    all_.emplace_back(offset, offset + bytes);
    sum_ += bytes;
  }
  int64_t CheckedEnd() {
    std::sort(all_.begin(), all_.end());
    int64_t end = 0;
    for (const auto& [first, last] : all_) {
      EXPECT_GE(first, end);
      end = last;
    }
    return end;
  }
  int64_t sum() const { return sum_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> all_;
  int64_t sum_ = 0;
};

void CheckSlots(const v1::Plan& plan, const v1::Layout& layout,
                const google::protobuf::RepeatedPtrField<v1::Slot>& slots, Intervals* placed) {
  int below_root_units = 0;
  int below_root_slots = 0;
  for (const v1::Slot& slot : slots) {
    placed->Add(slot.offset_bytes(), slot.bytes(), 128);
    below_root_slots += !slot.has_level() || slot.level() > 0;
  }
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::UnitLayout& unit = layout.units(i);
    const int around = plan.units(i).enclosing_unit();
    EXPECT_EQ(unit.level(),
              plan.units(i).has_enclosing_unit() ? layout.units(around).level() + 1 : 0);
    if (plan.units(i).numel() == 0) continue;
    below_root_units += unit.level() > 0;
    const int64_t bytes = unit.padded_numel() * DTypeBytes(plan.units(i).param_dtype());
    int homes = 0;
    for (const v1::Slot& slot : slots) {
      if (slot.has_level() && slot.level() != unit.level()) continue;
      if (!slot.has_level() && unit.level() == 0) continue;
      EXPECT_GE(slot.bytes(), bytes);
      homes += slot.has_level();
    }
    EXPECT_EQ(homes, 1);
  }
  EXPECT_LE(below_root_slots, below_root_units);
}

// Every unit with elements has one place, of its own length.
void CheckPlaces(const v1::Plan& plan, const v1::Layout& layout,
                 const google::protobuf::RepeatedPtrField<v1::Slot>& slots, Intervals* placed) {
  std::vector<int> places(plan.units_size(), 0);
  for (const v1::Slot& slot : slots) {
    placed->Add(slot.offset_bytes(), slot.bytes(), 128);
    ++places[slot.unit()];
    EXPECT_EQ(slot.bytes(), layout.units(slot.unit()).padded_numel() *
                                DTypeBytes(plan.units(slot.unit()).param_dtype()));
  }
  for (int i = 0; i < plan.units_size(); ++i) {
    EXPECT_EQ(places[i], plan.units(i).numel() > 0 ? 1 : 0);
  }
}

// The one host, from what it shares: bytes of all unsharded slots, of a rank's gradient slots, and
// of the unsharded file.
void CheckHost(const JobPlan& planned, int64_t unsharded, int64_t gradients,
               int64_t unsharded_file) {
  const int ranks = planned.layout.world_size();
  const v1::HostForecast& host = planned.forecast.hosts(0);
  EXPECT_EQ(host.unsharded_bytes(), unsharded);
  EXPECT_EQ(host.unsharded_gradient_bytes(), ranks * gradients);
  EXPECT_EQ(host.shared_total_bytes(), unsharded + ranks * gradients + host.control_bytes());
  EXPECT_EQ(host.unsharded_file_bytes(), unsharded_file);
  EXPECT_EQ(host.gradient_file_bytes(), ranks * planned.layout.gradient_stride_bytes());
  EXPECT_EQ(host.mapped_bytes(),
            unsharded_file + host.gradient_file_bytes() + host.control_bytes());
  EXPECT_EQ(host.mapped_bytes(),
            host.unsharded_file_bytes() + host.gradient_file_bytes() + host.control_file_bytes());
}

void CheckForecast(const JobPlan& planned, const v1::JobSpec& job) {
  const v1::Layout& layout = planned.layout;
  Intervals rank_file, unsharded, gradients;
  rank_file.Add(0, layout.rank_file().record_bytes(), 64);
  int64_t parameters = 0, own_parameters = 0, optimizer = 0, wire = 0, largest = 0, staging = 0;
  for (int i = 0; i < layout.units_size(); ++i) {
    const v1::UnitLayout& unit = layout.units(i);
    CheckUnit(planned.plan.units(i), unit, job, layout.shard_count());
    const bool resident_master =
        layout.unshard_mode() == v1::RESIDENT && planned.plan.units(i).param_dtype() == v1::FLOAT32;
    if (!resident_master) {
      rank_file.Add(unit.parameter_offset_bytes(), unit.shard_numel() * 4, 64);
      own_parameters += unit.shard_numel() * 4;
    }
    rank_file.Add(unit.gradient_offset_bytes(), unit.shard_numel() * 4, 64);
    rank_file.Add(unit.optimizer_offset_bytes(), unit.shard_numel() * 8, 64);
    parameters += unit.shard_numel() * 4;
    optimizer += unit.shard_numel() * 8;
    largest = std::max(largest, unit.shard_numel() * 12);
    if (planned.plan.units(i).reduce_dtype() != planned.plan.units(i).param_dtype()) {
      staging =
          std::max(staging, unit.padded_numel() * DTypeBytes(planned.plan.units(i).reduce_dtype()));
    }
    const int64_t gather =
        DTypeBytes(planned.plan.units(i).param_dtype()) * (i + 1 < layout.units_size() ? 2 : 1);
    wire += (unit.padded_numel() - unit.shard_numel()) *
            (gather + DTypeBytes(planned.plan.units(i).reduce_dtype()));
  }
  rank_file.Add(layout.rank_file().undo_offset_bytes(), layout.rank_file().undo_bytes(), 64);
  EXPECT_EQ(layout.rank_file().undo_bytes(), largest);
  EXPECT_EQ(rank_file.CheckedEnd(), layout.rank_file().total_bytes());
  if (layout.unshard_mode() == v1::RESIDENT) {
    CheckPlaces(planned.plan, layout, layout.unsharded_slots(), &unsharded);
  } else {
    CheckSlots(planned.plan, layout, layout.unsharded_slots(), &unsharded);
  }
  if (job.memory().accumulate_unsynchronized()) {
    CheckPlaces(planned.plan, layout, layout.gradient_slots(), &gradients);
  } else {
    CheckSlots(planned.plan, layout, layout.gradient_slots(), &gradients);
  }
  const bool gpu = layout.device() == v1::CUDA;
  const int64_t unsharded_file = RoundUp(unsharded.CheckedEnd(), 4096);
  const int64_t gradient_part = RoundUp(gradients.CheckedEnd(), 4096);
  EXPECT_EQ(layout.gradient_stride_bytes(), gpu ? 0 : gradient_part);
  for (const v1::RankForecast& rank : planned.forecast.ranks()) {
    EXPECT_EQ(rank.parameter_bytes(), own_parameters);
    EXPECT_EQ(rank.gradient_bytes(), parameters);
    EXPECT_EQ(rank.optimizer_bytes(), optimizer);
    EXPECT_EQ(rank.padding_bytes(), layout.rank_file().total_bytes() - rank_file.sum());
    EXPECT_EQ(rank.mapped_bytes(), RoundUp(layout.rank_file().total_bytes(), 4096));
    EXPECT_EQ(rank.has_gpu(), gpu);
    if (!gpu) continue;
    EXPECT_EQ(rank.gpu().total_bytes(), unsharded.sum() + gradients.sum() + staging);
    EXPECT_EQ(rank.gpu().allocated_bytes(),
              unsharded_file + gradient_part + RoundUp(staging, 4096));
  }
  EXPECT_EQ(planned.forecast.ranks_size(), layout.world_size());
  CheckHost(planned, gpu ? 0 : unsharded.sum(), gpu ? 0 : gradients.sum(),
            gpu ? 0 : unsharded_file);
  EXPECT_EQ(planned.forecast.wire_bytes_per_step(), wire);
}

TEST(PlanningPropertyTest, EveryPlanLayoutAndForecastHoldsTogether) {
  for (unsigned seed = 0; seed < kTrees; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    TreeMaker maker(seed);
    const Tree tree = maker.Make();
    v1::JobSpec job = maker.Job(tree);
    if (seed % 2 == 1) job.mutable_memory()->set_unshard("slots");
    if (seed % 5 == 1) job.set_device("cuda");
    const int world_size = 1 + maker.Below(9);
    const auto planned = PlanJob(job, world_size);
    ASSERT_TRUE(planned.ok()) << planned.status();
    CheckPlan(tree, job, planned->plan);
    CheckForecast(*planned, job);
    const auto again = PlanJob(job, world_size);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->plan.SerializeAsString(), planned->plan.SerializeAsString());
    EXPECT_EQ(again->layout.layout_fingerprint(), planned->layout.layout_fingerprint());
    EXPECT_EQ(planned->layout.layout_fingerprint(),
              LayoutFingerprint(planned->layout, planned->layout.units()));
  }
}

}  // namespace
}  // namespace tessera
