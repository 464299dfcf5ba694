// What `tessera` prints for people: plans, stats and jobs as text of at most 80 columns, times at
// most 100 (longer names have a line of their own). Pure: messages in, text out. Equal units of a
// stack of layers are folded into one row, "h.0 .. h.11 (12)".
//
//   std::cout << PlanTable(plan, layout, forecast);
#ifndef TESSERA_CLIENT_TABLES_H_
#define TESSERA_CLIENT_TABLES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/plan.pb.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

// Units with their dtypes, elements and bytes of one shard and of the whole unit; then the forecast
// of each rank and host, and the notes. `plan.units` and `layout.units` have the same length and
// order.
std::string PlanTable(const v1::Plan& plan, const v1::Layout& layout, const v1::Forecast& forecast);

// Two tables: bytes and dtypes of each unit, then its times over ranks in microseconds (min, median
// and max of the ranks' medians, the percentiles of the worst rank where they fit in 100 columns,
// and the rank whose median is the max). Folds the second only where there are more than 12 units:
// then min is the least, median the median and the others the greatest over the folded units.
std::string UnitStatsTable(const v1::JobStats& stats);

// Each rank's host, pid and mapped bytes, forecast beside measured.
std::string RankStatsTable(const v1::JobStats& stats);

// One "name  value" line for each thing to know of a job.
std::string JobText(const v1::Job& job);

std::string WorkersTable(absl::Span<const v1::Worker> workers);

// Where a run of units that a reader would call the same begins and ends: FQNs that differ in one
// number which grows by one, and equal `kinds`. fqns and kinds have the same length. The runs cover
// all units in order.
struct UnitRun {
  int begin = 0;
  int end = 0;  // exclusive
};
std::vector<UnitRun> FoldUnits(absl::Span<const std::string> fqns,
                               absl::Span<const std::string> kinds);

// "h.0", "h.0 .. h.3 (4)"; "(root)" for "".
std::string RunName(absl::Span<const std::string> fqns, const UnitRun& run);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TABLES_H_
