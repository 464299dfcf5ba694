// What `tessera` prints for people of jobs that run: stats and jobs as text of at most 80 columns,
// times at most 100 (longer names have a line of their own). Pure: messages in, text out. Equal
// units of a stack of layers are folded into one row, "h.0-11 x12".
//
//   std::cout << UnitStatsTable(stats);
#ifndef TESSERA_CLIENT_TABLES_H_
#define TESSERA_CLIENT_TABLES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/stats.pb.h"

namespace tessera {

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

}  // namespace tessera

#endif  // TESSERA_CLIENT_TABLES_H_
