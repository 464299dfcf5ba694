#include "client/tables.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/fold_units.h"
#include "client/text_table.h"
#include "common/dtype.h"
#include "google/protobuf/util/time_util.h"

namespace tessera {
namespace {

// Above this many units their times are folded too.
constexpr int kUnitsShownSingly = 12;
// As wide as the table of times may be.
constexpr size_t kTimesColumns = 100;

// In a column that stays narrow: what is under a microsecond says nothing above a millisecond.
std::string Microseconds(double value) {
  return value < 999.95 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.0f", value);
}

// "REDUCE_WAIT" as "reduce wait".
std::string OperationText(v1::Operation operation) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(v1::Operation_Name(operation)), {{"_", " "}});
}

// Over the units of one group: the operation as one line, or as nothing where no unit did it.
struct OperationSummary {
  double min_us = std::numeric_limits<double>::infinity();
  std::vector<double> medians_us;
  double max_us = -1;
  double p90_us = 0;
  double p99_us = 0;
  int slowest_rank = 0;
};

std::vector<std::pair<v1::Operation, OperationSummary>> Summarise(const v1::JobStats& stats,
                                                                  const UnitGroup& group) {
  std::vector<std::pair<v1::Operation, OperationSummary>> summaries;
  for (const v1::Operation operation : {v1::UNSHARD, v1::WAIT, v1::FORWARD, v1::BACKWARD,
                                        v1::REDUCE, v1::REDUCE_WAIT, v1::OPTIMIZER}) {
    OperationSummary summary;
    for (const int i : group.units) {
      for (const v1::OperationStats& one : stats.units(i).operations()) {
        if (one.operation() != operation) continue;
        summary.min_us = std::min(summary.min_us, one.min_us());
        summary.medians_us.push_back(one.median_us());
        summary.p90_us = std::max(summary.p90_us, one.p90_us());
        summary.p99_us = std::max(summary.p99_us, one.p99_us());
        if (one.max_us() > summary.max_us) {
          summary.max_us = one.max_us();
          summary.slowest_rank = one.slowest_rank();
        }
      }
    }
    if (!summary.medians_us.empty()) summaries.emplace_back(operation, std::move(summary));
  }
  return summaries;
}

std::string TimesTable(const v1::JobStats& stats, absl::Span<const UnitGroup> groups,
                       bool percentiles) {
  std::vector<TextTable::Column> columns = {
      {"UNIT", Align::kLeft}, {"OPERATION", Align::kLeft}, {"MIN us"}, {"MEDIAN us"}, {"MAX us"}};
  for (const char* header : {"P90 us", "P99 us"}) {
    if (percentiles) columns.push_back({header});
  }
  columns.push_back({"SLOWEST RANK"});
  TextTable table(std::move(columns), percentiles ? kTimesColumns : 80);
  for (const UnitGroup& group : groups) {
    std::string name = group.name;
    for (auto& [operation, summary] : Summarise(stats, group)) {
      const auto middle =
          summary.medians_us.begin() + static_cast<int64_t>(summary.medians_us.size() / 2);
      std::nth_element(summary.medians_us.begin(), middle, summary.medians_us.end());
      std::vector<std::string> row = {name, OperationText(operation), Microseconds(summary.min_us),
                                      Microseconds(*middle), Microseconds(summary.max_us)};
      for (const double percentile : {summary.p90_us, summary.p99_us}) {
        if (percentiles) row.push_back(Microseconds(percentile));
      }
      row.push_back(absl::StrCat(summary.slowest_rank));
      table.AddRow(std::move(row));
      name.clear();
    }
  }
  return table.ToString();
}

}  // namespace

std::string UnitStatsTable(const v1::JobStats& stats) {
  std::vector<std::string> fqns;
  std::vector<std::string> kinds;
  for (const v1::UnitStats& unit : stats.units()) {
    fqns.push_back(unit.fqn());
    kinds.push_back(absl::StrCat(unit.param_dtype(), "/", unit.reduce_dtype(), "/",
                                 unit.sharded_bytes(), "/", unit.unsharded_bytes()));
  }
  const std::vector<UnitGroup> folded = FoldUnits(fqns, kinds);
  TextTable bytes({{"UNIT", Align::kLeft},
                   {"PARAM", Align::kLeft},
                   {"REDUCE", Align::kLeft},
                   {"SHARDED BYTES"},
                   {"UNSHARDED BYTES"}});
  for (const UnitGroup& group : folded) {
    const v1::UnitStats& unit = stats.units(group.units[0]);
    bytes.AddRow({group.name, DTypeName(unit.param_dtype()), DTypeName(unit.reduce_dtype()),
                  WithThousands(unit.sharded_bytes()), WithThousands(unit.unsharded_bytes())});
  }
  std::vector<UnitGroup> timed = folded;
  if (stats.units_size() <= kUnitsShownSingly) {
    timed.clear();
    for (int i = 0; i < stats.units_size(); ++i) {
      timed.push_back({fqns[i].empty() ? "(root)" : fqns[i], {i}});
    }
  }
  std::string times = TimesTable(stats, timed, /*percentiles=*/true);
  // The header is as wide as a row, but for names on lines of their own.
  if (times.find('\n') > kTimesColumns) times = TimesTable(stats, timed, /*percentiles=*/false);
  return absl::StrCat(bytes.ToString(), "\n", times);
}

std::string RankStatsTable(const v1::JobStats& stats) {
  TextTable table({{"RANK", Align::kLeft},
                   {"HOST"},
                   {"PID"},
                   {"FORECAST BYTES"},
                   {"MEASURED BYTES"},
                   {"DIFFERENCE"}});
  for (const v1::RankStats& rank : stats.ranks()) {
    table.AddRow({absl::StrCat(rank.rank()), absl::StrCat(rank.host()), absl::StrCat(rank.pid()),
                  WithThousands(rank.forecast_bytes()), WithThousands(rank.measured_bytes()),
                  WithThousands(rank.measured_bytes() - rank.forecast_bytes())});
  }
  return table.ToString();
}

std::string JobText(const v1::Job& job) {
  std::string text = absl::StrCat("job         ", job.name(), "\nstate       ",
                                  v1::JobState_Name(job.state()), "\n");
  if (!job.reason().empty()) absl::StrAppend(&text, "reason      ", job.reason(), "\n");
  if (job.has_failed_rank()) absl::StrAppend(&text, "failed rank ", job.failed_rank(), "\n");
  absl::StrAppend(&text, "step        ", job.step(), "/", job.steps(), "\n");
  if (job.has_loss()) absl::StrAppendFormat(&text, "loss        %.3f\n", job.loss());
  if (job.checkpoint_step() > 0)
    absl::StrAppend(&text, "checkpoint  step ", job.checkpoint_step(), "\n");
  absl::StrAppend(&text, "generation  ", job.generation(), "\nworld size  ", job.world_size(),
                  "\n");
  if (job.recoveries() > 0) absl::StrAppend(&text, "recoveries  ", job.recoveries(), "\n");
  for (const auto& [name, has, time] :
       {std::tuple("created     ", job.has_create_time(), job.create_time()),
        std::tuple("ended       ", job.has_end_time(), job.end_time())}) {
    if (!has) continue;
    absl::StrAppend(&text, name, google::protobuf::util::TimeUtil::ToString(time), "\n");
  }
  return text;
}

std::string WorkersTable(absl::Span<const v1::Worker> workers) {
  TextTable table({{"HOST NAME", Align::kLeft},
                   {"HOST"},
                   {"RANK"},
                   {"PID"},
                   {"STATE", Align::kLeft},
                   {"INCARNATION", Align::kLeft}});
  for (const v1::Worker& worker : workers) {
    // A host that stands by has no place among the job's yet.
    const bool standby = worker.rank() < 0;
    table.AddRow({worker.host_name(), standby ? "-" : absl::StrCat(worker.host()),
                  standby ? "-" : absl::StrCat(worker.rank()), absl::StrCat(worker.pid()),
                  worker.state(), worker.incarnation()});
  }
  std::string text = table.ToString();
  std::string positions;
  for (const v1::Worker& worker : workers) {
    if (worker.position().empty()) continue;
    absl::StrAppend(&positions,
                    worker.rank() < 0 ? absl::StrCat("host ", worker.host_name(), ": ")
                                      : absl::StrCat("rank ", worker.rank(), " "),
                    worker.position(), "\n");
  }
  if (!positions.empty()) absl::StrAppend(&text, "\n", positions);
  return text;
}

}  // namespace tessera
