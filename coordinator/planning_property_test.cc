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
#include "coordinator/layout.h"

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

  // To run on `world_size` ranks.
  v1::JobSpec Job(const Tree& tree, int world_size) {
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
    SetMesh(world_size, job.mutable_mesh());
    auto resolved = ResolveJobSpec(std::move(job));
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return *std::move(resolved);
  }

 private:
  int DivisorOf(int number) {
    int divisor = 1 + Below(number);
    while (number % divisor != 0) --divisor;
    return divisor;
  }

  void SetMesh(int world_size, v1::MeshSpec* mesh) {
    constexpr const char* kStrategies[] = {"full_shard", "full_shard",   "shard_grad_op",
                                           "no_shard",   "hybrid_shard", "hybrid_shard_zero2"};
    const std::string strategy = kStrategies[Below(6)];
    mesh->set_strategy(strategy);
    const int local = DivisorOf(world_size);
    if (Below(2) == 0) mesh->set_local_world_size(local);
    int shards = world_size;
    if (strategy == "full_shard" || strategy == "shard_grad_op") {
      if (Below(3) == 0) shards = DivisorOf(world_size);
      mesh->set_replicas(world_size / shards);
    } else if (strategy != "no_shard" && mesh->has_local_world_size()) {
      shards = local;
    }
    if ((strategy == "full_shard" || strategy == "hybrid_shard") && Below(3) == 0) {
      mesh->set_reshard_group(DivisorOf(shards));
    }
  }

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

// Of every copy of the whole: the parameters' parts in rank order.
void CheckRanks(const v1::Unit& unit, const v1::UnitLayout& unit_layout, const v1::Layout& layout) {
  for (int replica = 0; replica < layout.replica_count(); ++replica) {
    std::vector<int64_t> next(unit.parameters_size(), 0);
    for (int index = 0; index < layout.shard_count(); ++index) {
      const int rank = replica * layout.shard_count() + index;
      const auto shards = ShardsOf(unit, unit_layout, layout, rank);
      for (size_t i = 0; i < shards.size(); ++i) {
        if (!shards[i].in_shard) continue;
        EXPECT_EQ(shards[i].first, next[i]);
        EXPECT_EQ(shards[i].last - shards[i].first + 1, shards[i].numel_in_shard);
        // Where it lies in the flat parameter.
        EXPECT_EQ(index * unit_layout.shard_numel() + shards[i].offset_in_shard,
                  unit_layout.parameters(static_cast<int>(i)).offset() + shards[i].first);
        next[i] = shards[i].last + 1;
      }
    }
    for (int i = 0; i < unit.parameters_size(); ++i) {
      EXPECT_EQ(next[i], unit.parameters(i).numel());
    }
  }
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

// Units that `placed_units` names have a place of their own, the others turns on their level.
void CheckSlots(const v1::Plan& plan, const v1::Layout& layout,
                const google::protobuf::RepeatedPtrField<v1::Slot>& slots,
                const std::set<int>& placed_units, Intervals* placed) {
  int below_root_units = 0;
  int below_root_slots = 0;
  std::set<int> own;
  for (const v1::Slot& slot : slots) {
    placed->Add(slot.offset_bytes(), slot.bytes(), 128);
    if (slot.has_unit()) {
      EXPECT_TRUE(own.insert(slot.unit()).second);
      EXPECT_EQ(slot.bytes(), layout.units(slot.unit()).padded_numel() *
                                  DTypeBytes(plan.units(slot.unit()).param_dtype()));
      continue;
    }
    below_root_slots += !slot.has_level() || slot.level() > 0;
  }
  EXPECT_EQ(own, placed_units);
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::UnitLayout& unit = layout.units(i);
    const int around = plan.units(i).enclosing_unit();
    EXPECT_EQ(unit.level(),
              plan.units(i).has_enclosing_unit() ? layout.units(around).level() + 1 : 0);
    if (plan.units(i).numel() == 0 || own.count(i) > 0) continue;
    below_root_units += unit.level() > 0;
    const int64_t bytes = unit.padded_numel() * DTypeBytes(plan.units(i).param_dtype());
    int homes = 0;
    for (const v1::Slot& slot : slots) {
      if (slot.has_unit()) continue;
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

// Every host, from what its ranks and shard groups have: bytes of unsharded slots, of a rank's
// gradient and reshard slots, and of the unsharded file.
void CheckHosts(const JobPlan& planned, int64_t unsharded, int64_t gradients, int64_t resharded,
                int64_t unsharded_file) {
  const v1::Layout& layout = planned.layout;
  const int local =
      layout.local_world_size() == 0 ? layout.world_size() : layout.local_world_size();
  ASSERT_EQ(planned.forecast.hosts_size(), layout.world_size() / local);
  for (const v1::HostForecast& host : planned.forecast.hosts()) {
    std::set<int> groups;
    for (int i = 0; i < local; ++i) groups.insert((host.host() * local + i) / layout.shard_count());
    const int64_t count = static_cast<int64_t>(groups.size());
    EXPECT_EQ(host.ranks(), local);
    EXPECT_EQ(host.unsharded_bytes(), count * unsharded);
    EXPECT_EQ(host.unsharded_gradient_bytes(), local * gradients);
    EXPECT_EQ(host.resharded_bytes(), local * resharded);
    EXPECT_EQ(host.shared_total_bytes(), count * unsharded + local * (gradients + resharded) +
                                             host.staging_bytes() + host.control_bytes());
    EXPECT_EQ(host.staging_bytes(),
              layout.device() == v1::CUDA ? 0 : local * layout.staging_bytes());
    EXPECT_EQ(host.unsharded_file_bytes(), count * unsharded_file);
    EXPECT_EQ(host.gradient_file_bytes(), local * layout.gradient_stride_bytes());
    EXPECT_EQ(host.mapped_bytes(),
              host.unsharded_file_bytes() + host.gradient_file_bytes() + host.control_file_bytes());
  }
}

// Whether the unit is whole from its forward to its backward, by the job's own words.
bool Kept(const v1::JobSpec& job, const v1::Layout& layout, int unit) {
  const std::string& strategy = job.mesh().strategy();
  return unit + 1 == layout.units_size() || strategy == "shard_grad_op" ||
         strategy == "hybrid_shard_zero2" ||
         (job.mesh().reshard_group() == 1 && layout.shard_count() > 1);
}

// Sent by a rank for one unit, by the formulas of semantics.md 6.3.
int64_t WireBytes(const v1::Unit& unit, const v1::UnitLayout& unit_layout, const v1::JobSpec& job,
                  const v1::Layout& layout, int index) {
  const int64_t param = DTypeBytes(unit.param_dtype());
  const int64_t reduce = DTypeBytes(unit.reduce_dtype());
  const int64_t others = unit_layout.padded_numel() - unit_layout.shard_numel();
  int64_t bytes = others * (param + reduce);
  if (!Kept(job, layout, index)) {
    const int64_t group =
        job.mesh().reshard_group() == 0 ? layout.shard_count() : job.mesh().reshard_group();
    bytes += (unit_layout.padded_numel() - unit_layout.padded_numel() / group) * param;
  }
  const int64_t replicas = layout.replica_count();
  const int64_t piece = (unit_layout.shard_numel() + replicas - 1) / replicas;
  return bytes + 2 * (replicas - 1) * piece * reduce;
}

// What is live never exceeds what is planned, and every sum is of its parts.
void CheckPhases(const JobPlan& planned, int64_t unsharded, int64_t gradients, int64_t resharded) {
  const v1::RankForecast& rank = planned.forecast.ranks(0);
  int64_t most = 0;
  for (const v1::PhaseForecast& phase : planned.forecast.phases()) {
    EXPECT_LE(phase.unsharded_bytes(), unsharded);
    EXPECT_LE(phase.unsharded_gradient_bytes(), gradients);
    EXPECT_LE(phase.resharded_bytes(), resharded);
    EXPECT_LE(phase.staging_bytes(), planned.layout.staging_bytes());
    EXPECT_EQ(phase.rank_bytes(), rank.private_total_bytes() + phase.unsharded_bytes() +
                                      phase.unsharded_gradient_bytes() + phase.resharded_bytes() +
                                      phase.staging_bytes() + phase.activation_bytes());
    EXPECT_GE(phase.rank_bytes(), planned.forecast.phases(0).rank_bytes());
    EXPECT_GE(phase.rank_bytes(), most * (phase.phase() == v1::PhaseForecast::PEAK));
    most = std::max(most, phase.rank_bytes());
  }
  EXPECT_EQ(planned.forecast.phases().rbegin()->phase(), v1::PhaseForecast::PEAK);
  EXPECT_EQ(planned.forecast.phases().rbegin()->rank_bytes(), most);
}

void CheckTraffic(const v1::Forecast& forecast, int64_t wire) {
  EXPECT_EQ(forecast.wire_bytes_per_step(), wire);
  int64_t intra = 0, inter = 0;
  for (const v1::RankForecast& rank : forecast.ranks()) {
    EXPECT_EQ(rank.intra_host_wire_bytes_per_step() + rank.inter_host_wire_bytes_per_step(), wire);
    intra += rank.intra_host_wire_bytes_per_step();
    inter += rank.inter_host_wire_bytes_per_step();
  }
  EXPECT_EQ(forecast.intra_host_wire_bytes_per_step(), intra);
  EXPECT_EQ(forecast.inter_host_wire_bytes_per_step(), inter);
  EXPECT_EQ(forecast.hosts_size() == 1 && inter > 0, false);
}

void CheckForecast(const JobPlan& planned, const v1::JobSpec& job) {
  const v1::Layout& layout = planned.layout;
  Intervals rank_file, unsharded, gradients, resharded, part;
  rank_file.Add(0, layout.rank_file().record_bytes(), 64);
  int64_t parameters = 0, own_parameters = 0, optimizer = 0, wire = 0, largest = 0, staging = 0;
  int64_t elements = 0;
  std::set<int> kept;
  for (int i = 0; i < layout.units_size(); ++i) {
    const v1::UnitLayout& unit = layout.units(i);
    const v1::Unit& planned_unit = planned.plan.units(i);
    CheckUnit(planned_unit, unit, job, layout.shard_count());
    CheckRanks(planned_unit, unit, layout);
    elements += planned_unit.numel();
    // The root's slot is its place.
    if (planned_unit.numel() > 0) {
      const bool root_slot = i + 1 == layout.units_size() &&
                             job.mesh().strategy() != "shard_grad_op" &&
                             job.mesh().strategy() != "hybrid_shard_zero2";
      if (Kept(job, layout, i) && !root_slot) kept.insert(i);
    }
    const bool resident_master =
        layout.unshard_mode() == v1::RESIDENT && planned_unit.param_dtype() == v1::FLOAT32;
    if (!resident_master) {
      rank_file.Add(unit.parameter_offset_bytes(), unit.shard_numel() * 4, 64);
      own_parameters += unit.shard_numel() * 4;
    }
    rank_file.Add(unit.gradient_offset_bytes(), unit.shard_numel() * 4, 64);
    rank_file.Add(unit.optimizer_offset_bytes(), unit.shard_numel() * 8, 64);
    parameters += unit.shard_numel() * 4;
    optimizer += unit.shard_numel() * 8;
    largest = std::max(largest, unit.shard_numel() * 12);
    if (planned_unit.reduce_dtype() != planned_unit.param_dtype()) {
      staging = std::max(staging, unit.padded_numel() * DTypeBytes(planned_unit.reduce_dtype()));
    }
    wire += WireBytes(planned_unit, unit, job, layout, i);
  }
  rank_file.Add(layout.rank_file().undo_offset_bytes(), layout.rank_file().undo_bytes(), 64);
  EXPECT_EQ(layout.rank_file().undo_bytes(), largest);
  EXPECT_EQ(rank_file.CheckedEnd(), layout.rank_file().total_bytes());
  if (layout.unshard_mode() == v1::RESIDENT) {
    CheckPlaces(planned.plan, layout, layout.unsharded_slots(), &unsharded);
  } else {
    CheckSlots(planned.plan, layout, layout.unsharded_slots(), kept, &unsharded);
  }
  if (job.memory().accumulate_unsynchronized()) {
    CheckPlaces(planned.plan, layout, layout.gradient_slots(), &gradients);
  } else {
    CheckSlots(planned.plan, layout, layout.gradient_slots(), {}, &gradients);
  }
  for (const v1::Slot& slot : layout.gradient_slots())
    part.Add(slot.offset_bytes(), slot.bytes(), 128);
  for (const v1::Slot& slot : layout.reshard_slots()) {
    part.Add(slot.offset_bytes(), slot.bytes(), 128);
    resharded.Add(slot.offset_bytes(), slot.bytes(), 128);
    EXPECT_EQ(slot.bytes() * job.mesh().reshard_group(),
              layout.units(slot.unit()).padded_numel() *
                  DTypeBytes(planned.plan.units(slot.unit()).param_dtype()));
  }
  const bool gpu = layout.device() == v1::CUDA;
  const int64_t unsharded_file = RoundUp(unsharded.CheckedEnd(), 4096);
  const int64_t gradient_part = RoundUp(part.CheckedEnd(), 4096);
  // Of CPUs' ranks on several hosts.
  const int64_t host_staging =
      planned.forecast.hosts_size() > 1 && layout.local_world_size() % layout.shard_count() == 0
          ? 2 * 512 * 1024 + largest / 12 * 4
          : 0;
  if (!gpu) {
    EXPECT_EQ(layout.staging_bytes(), host_staging);
  }
  EXPECT_EQ(layout.gradient_stride_bytes(), gpu ? 0 : gradient_part + RoundUp(host_staging, 4096));
  for (const v1::RankForecast& rank : planned.forecast.ranks()) {
    EXPECT_EQ(rank.parameter_bytes(), own_parameters);
    EXPECT_EQ(rank.gradient_bytes(), parameters);
    EXPECT_EQ(rank.optimizer_bytes(), optimizer);
    EXPECT_EQ(rank.padding_bytes(), layout.rank_file().total_bytes() - rank_file.sum());
    EXPECT_EQ(rank.mapped_bytes(), RoundUp(layout.rank_file().total_bytes(), 4096));
    EXPECT_EQ(rank.has_gpu(), gpu);
    if (!gpu) continue;
    EXPECT_EQ(rank.gpu().total_bytes(),
              unsharded.sum() + gradients.sum() + resharded.sum() + staging);
    EXPECT_EQ(rank.gpu().allocated_bytes(),
              unsharded_file + gradient_part + RoundUp(staging, 4096));
  }
  EXPECT_EQ(planned.forecast.ranks_size(), layout.world_size());
  CheckHosts(planned, gpu ? 0 : unsharded.sum(), gpu ? 0 : gradients.sum(),
             gpu ? 0 : resharded.sum(), gpu ? 0 : unsharded_file);
  CheckPhases(planned, unsharded.sum(), gradients.sum(), resharded.sum());
  CheckTraffic(planned.forecast, wire);
  EXPECT_EQ(planned.forecast.export_bytes(), elements * 4);
  EXPECT_EQ(planned.forecast.checkpoint_bytes(), elements * 12);
}

TEST(PlanningPropertyTest, EveryPlanLayoutAndForecastHoldsTogether) {
  for (unsigned seed = 0; seed < kTrees; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    TreeMaker maker(seed);
    const Tree tree = maker.Make();
    const int world_size = 1 + maker.Below(12);
    v1::JobSpec job = maker.Job(tree, world_size);
    if (seed % 2 == 1) job.mutable_memory()->set_unshard("slots");
    if (seed % 5 == 1) job.set_device("cuda");
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
