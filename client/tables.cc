#include "client/tables.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/text_table.h"
#include "common/dtype.h"
#include "google/protobuf/util/time_util.h"

namespace tessera {
namespace {

// Above this many units their times are folded too.
constexpr int kUnitsShownSingly = 12;
// As wide as the table of times may be.
constexpr size_t kTimesColumns = 100;
// Enough of a fingerprint to tell plans apart by eye; JSON has all of it.
constexpr size_t kFingerprintCharacters = 12;

std::string Short(const std::string& fingerprint) {
  return fingerprint.substr(0, kFingerprintCharacters);
}

// In a column that stays narrow: what is under a microsecond says nothing above a millisecond.
std::string Microseconds(double value) {
  return absl::StrFormat(value < 999.95 ? "%.1f" : "%.0f", value);
}

// "REDUCE_WAIT" as "reduce wait".
std::string OperationText(v1::Operation operation) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(v1::Operation_Name(operation)), {{"_", " "}});
}

// Position of the only segment in which the FQNs differ, if there it is a number that grows by one;
// else -1.
int CountingSegment(const std::string& before, const std::string& after) {
  const std::vector<std::string> left = absl::StrSplit(before, '.');
  const std::vector<std::string> right = absl::StrSplit(after, '.');
  if (left.size() != right.size()) return -1;
  int found = -1;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i] == right[i]) continue;
    int64_t x = 0;
    int64_t y = 0;
    if (found != -1 || !absl::SimpleAtoi(left[i], &x) || !absl::SimpleAtoi(right[i], &y) ||
        y != x + 1) {
      return -1;
    }
    found = static_cast<int>(i);
  }
  return found;
}

std::string RanksForecastTable(const v1::Forecast& forecast) {
  TextTable table({{"RANK", Align::kLeft},
                   {"PARAMETERS"},
                   {"GRADIENTS"},
                   {"OPTIMIZER"},
                   {"UNDO"},
                   {"TOTAL"},
                   {"MAPPED"}});
  // Ranks with the same figures, as they mostly are, share a row.
  const auto cells = [](const v1::RankForecast& rank) {
    return std::vector<std::string>{"",
                                    WithThousands(rank.parameter_bytes()),
                                    WithThousands(rank.gradient_bytes()),
                                    WithThousands(rank.optimizer_bytes()),
                                    WithThousands(rank.undo_bytes()),
                                    WithThousands(rank.private_total_bytes()),
                                    WithThousands(rank.mapped_bytes())};
  };
  for (int begin = 0; begin < forecast.ranks_size();) {
    std::vector<std::string> row = cells(forecast.ranks(begin));
    int end = begin + 1;
    while (end < forecast.ranks_size() && cells(forecast.ranks(end)) == row) ++end;
    row[0] = absl::StrCat(forecast.ranks(begin).rank());
    if (end - begin > 1) absl::StrAppend(&row[0], " .. ", forecast.ranks(end - 1).rank());
    table.AddRow(std::move(row));
    begin = end;
  }
  return table.ToString();
}

// Nothing where no rank has a GPU. All have the same buffers.
std::string GpusForecastTable(const v1::Forecast& forecast) {
  if (forecast.ranks().empty() || !forecast.ranks(0).has_gpu()) return "";
  TextTable table({{"UNSHARDED"}, {"GRADIENTS"}, {"STAGING"}, {"TOTAL"}, {"ALLOCATED"}});
  const v1::GpuForecast& gpu = forecast.ranks(0).gpu();
  table.AddRow({WithThousands(gpu.unsharded_bytes()), WithThousands(gpu.unsharded_gradient_bytes()),
                WithThousands(gpu.staging_bytes()), WithThousands(gpu.total_bytes()),
                WithThousands(gpu.allocated_bytes())});
  return absl::StrCat("\nBytes on each rank's GPU\n", table.ToString());
}

std::string HostsForecastTable(const v1::Forecast& forecast) {
  TextTable table({{"HOST", Align::kLeft},
                   {"UNSHARDED"},
                   {"GRADIENTS"},
                   {"STAGING"},
                   {"CONTROL"},
                   {"TOTAL"},
                   {"MAPPED"}});
  for (const v1::HostForecast& host : forecast.hosts()) {
    table.AddRow({absl::StrCat(host.host()), WithThousands(host.unsharded_bytes()),
                  WithThousands(host.unsharded_gradient_bytes()),
                  WithThousands(host.staging_bytes()), WithThousands(host.control_bytes()),
                  WithThousands(host.shared_total_bytes()), WithThousands(host.mapped_bytes())});
  }
  return table.ToString();
}

std::string Activations(const v1::Forecast& forecast) {
  if (forecast.activation_certainty() == v1::Forecast::UNKNOWN ||
      forecast.activation_certainty() == v1::Forecast::CERTAINTY_UNSPECIFIED) {
    return "activations  unknown\n";
  }
  return absl::StrCat(
      "activations  ", WithThousands(forecast.activation_bytes()), " bytes (",
      absl::AsciiStrToLower(v1::Forecast::Certainty_Name(forecast.activation_certainty())), ")\n");
}

// Over the units of one run: the operation as one line, or as nothing where no unit did it.
struct OperationSummary {
  double min_us = std::numeric_limits<double>::infinity();
  std::vector<double> medians_us;
  double max_us = -1;
  double p90_us = 0;
  double p99_us = 0;
  int slowest_rank = 0;
};

std::vector<std::pair<v1::Operation, OperationSummary>> Summarise(const v1::JobStats& stats,
                                                                  const UnitRun& run) {
  std::vector<std::pair<v1::Operation, OperationSummary>> summaries;
  for (const v1::Operation operation :
       {v1::UNSHARD, v1::WAIT, v1::REDUCE, v1::REDUCE_WAIT, v1::OPTIMIZER}) {
    OperationSummary summary;
    for (int i = run.begin; i < run.end; ++i) {
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

std::string TimesTable(const v1::JobStats& stats, absl::Span<const std::string> fqns,
                       absl::Span<const UnitRun> runs, bool percentiles) {
  std::vector<TextTable::Column> columns = {
      {"UNIT", Align::kLeft}, {"OPERATION", Align::kLeft}, {"MIN us"}, {"MEDIAN us"}, {"MAX us"}};
  for (const char* header : {"P90 us", "P99 us"}) {
    if (percentiles) columns.push_back({header});
  }
  columns.push_back({"SLOWEST RANK"});
  TextTable table(std::move(columns), percentiles ? kTimesColumns : 80);
  for (const UnitRun& run : runs) {
    std::string name = RunName(fqns, run);
    for (auto& [operation, summary] : Summarise(stats, run)) {
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

// A note in lines of at most 80 columns; a longer word keeps a line to itself.
void AppendNote(const std::string& note, std::string* text) {
  constexpr size_t kColumns = 80;
  std::string line = "note:";
  for (const absl::string_view word : absl::StrSplit(note, ' ', absl::SkipEmpty())) {
    if (line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(text, line, "\n");
      line = "     ";
    }
    absl::StrAppend(&line, " ", word);
  }
  absl::StrAppend(text, line, "\n");
}

}  // namespace

std::vector<UnitRun> FoldUnits(absl::Span<const std::string> fqns,
                               absl::Span<const std::string> kinds) {
  std::vector<UnitRun> runs;
  int segment = -1;
  for (int i = 0; i < static_cast<int>(fqns.size()); ++i) {
    const int counting =
        i > 0 && kinds[i] == kinds[i - 1] ? CountingSegment(fqns[i - 1], fqns[i]) : -1;
    const bool joins =
        counting != -1 && (runs.back().end - runs.back().begin == 1 || counting == segment);
    if (joins) {
      segment = counting;
      runs.back().end = i + 1;
    } else {
      runs.push_back({i, i + 1});
    }
  }
  return runs;
}

std::string RunName(absl::Span<const std::string> fqns, const UnitRun& run) {
  const std::string& first = fqns[run.begin];
  if (run.end - run.begin == 1) return first.empty() ? "(root)" : first;
  return absl::StrCat(first, " .. ", fqns[run.end - 1], " (", run.end - run.begin, ")");
}

std::string PlanTable(const v1::Plan& plan, const v1::Layout& layout,
                      const v1::Forecast& forecast) {
  std::vector<std::string> fqns;
  std::vector<std::string> kinds;
  std::vector<std::vector<std::string>> rows;
  for (int i = 0; i < plan.units_size(); ++i) {
    const v1::Unit& unit = plan.units(i);
    const v1::UnitLayout& placed = layout.units(i);
    fqns.push_back(unit.fqn());
    rows.push_back({"", unit.class_name(), WithThousands(unit.numel()),
                    DTypeName(unit.param_dtype()), DTypeName(unit.reduce_dtype()),
                    WithThousands(placed.shard_numel() * DTypeBytes(unit.original_dtype())),
                    WithThousands(placed.padded_numel() * DTypeBytes(unit.param_dtype()))});
    kinds.push_back(absl::StrCat(rows.back()[1], "/", rows.back()[2], "/", rows.back()[3], "/",
                                 rows.back()[4], "/", rows.back()[5], "/", rows.back()[6]));
  }
  TextTable table({{"UNIT", Align::kLeft},
                   {"CLASS", Align::kLeft},
                   {"NUMEL"},
                   {"PARAM", Align::kLeft},
                   {"REDUCE", Align::kLeft},
                   {"SHARDED"},
                   {"UNSHARDED"}});
  for (const UnitRun& run : FoldUnits(fqns, kinds)) {
    std::vector<std::string> row = rows[run.begin];
    row[0] = RunName(fqns, run);
    table.AddRow(std::move(row));
  }

  std::string text = absl::StrCat(
      "model ", plan.model_name(), ", ", plan.units_size(), " units, world size ",
      layout.world_size(), ", ",
      absl::AsciiStrToLower(v1::ShardingStrategy_Name(layout.sharding_strategy())), ", unshard ",
      absl::AsciiStrToLower(v1::UnshardMode_Name(layout.unshard_mode())), "\nplan ",
      Short(plan.plan_fingerprint()), ", layout ", Short(layout.layout_fingerprint()),
      "\n\nElements of each unit, and bytes of a shard and of the whole\n", table.ToString(),
      "\nBytes of a rank's own memory\n", RanksForecastTable(forecast), GpusForecastTable(forecast),
      "\nBytes that the ranks of a host share\n", HostsForecastTable(forecast), "\n",
      Activations(forecast), "on a wire    ", WithThousands(forecast.wire_bytes_per_step()),
      " bytes a rank and step\n");
  for (const std::string& fqn : plan.orphans()) absl::StrAppend(&text, "orphan  ", fqn, "\n");
  for (const std::string& fqn : plan.ignored()) absl::StrAppend(&text, "ignored  ", fqn, "\n");
  for (const std::string& note : plan.notes()) AppendNote(note, &text);
  for (const std::string& note : layout.notes()) AppendNote(note, &text);
  return text;
}

std::string UnitStatsTable(const v1::JobStats& stats) {
  std::vector<std::string> fqns;
  std::vector<std::string> kinds;
  for (const v1::UnitStats& unit : stats.units()) {
    fqns.push_back(unit.fqn());
    kinds.push_back(absl::StrCat(unit.param_dtype(), "/", unit.reduce_dtype(), "/",
                                 unit.sharded_bytes(), "/", unit.unsharded_bytes()));
  }
  const std::vector<UnitRun> folded = FoldUnits(fqns, kinds);
  TextTable bytes({{"UNIT", Align::kLeft},
                   {"PARAM", Align::kLeft},
                   {"REDUCE", Align::kLeft},
                   {"SHARDED BYTES"},
                   {"UNSHARDED BYTES"}});
  for (const UnitRun& run : folded) {
    const v1::UnitStats& unit = stats.units(run.begin);
    bytes.AddRow({RunName(fqns, run), DTypeName(unit.param_dtype()), DTypeName(unit.reduce_dtype()),
                  WithThousands(unit.sharded_bytes()), WithThousands(unit.unsharded_bytes())});
  }
  std::vector<UnitRun> timed = folded;
  if (stats.units_size() <= kUnitsShownSingly) {
    timed.clear();
    for (int i = 0; i < stats.units_size(); ++i) timed.push_back({i, i + 1});
  }
  std::string times = TimesTable(stats, fqns, timed, /*percentiles=*/true);
  // The header is as wide as a row, but for names on lines of their own.
  if (times.find('\n') > kTimesColumns) times = TimesTable(stats, fqns, timed, false);
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
  absl::StrAppend(&text, "generation  ", job.generation(), "\nworld size  ", job.world_size(),
                  "\n");
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
    table.AddRow({worker.host_name(), absl::StrCat(worker.host()), absl::StrCat(worker.rank()),
                  absl::StrCat(worker.pid()), worker.state(), worker.incarnation()});
  }
  return table.ToString();
}

}  // namespace tessera
