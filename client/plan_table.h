// A plan as text of at most 80 columns, for terminals. Equal units are folded into one row
// ("layers.0-125 x126"), long names shortened in their middle, figures that do not fit written in
// units ("6.1 GiB"); JSON has all of it. Pure: messages in, text out.
//
//   std::cout << PlanTable(plan, layout, forecast);
#ifndef TESSERA_CLIENT_PLAN_TABLE_H_
#define TESSERA_CLIENT_PLAN_TABLE_H_

#include <string>
#include <vector>

#include "client/fold_units.h"
#include "tessera/v1/plan.pb.h"
#include "tessera/v1/plan_service.pb.h"

namespace tessera {

// Units with their dtypes, elements and bytes of one shard and of the whole unit; then the forecast
// of each rank and host, what belongs to no unit, and the notes. `plan.units` and `layout.units`
// have the same length and order.
std::string PlanTable(const v1::Plan& plan, const v1::Layout& layout, const v1::Forecast& forecast);

// Whether a module is a unit, in which one its parameters are, and why.
std::string ExplainText(const v1::ExplainModuleResponse& explained);

// The plan's units, folded where all that a reader sees of them is equal.
std::vector<UnitGroup> FoldPlanUnits(const v1::Plan& plan, const v1::Layout& layout);

// Bytes of one shard in the dtype of the master, and of the whole unit in the dtype it computes in.
int64_t ShardBytes(const v1::Unit& unit, const v1::UnitLayout& placed);
int64_t WholeBytes(const v1::Unit& unit, const v1::UnitLayout& placed);

// "full_shard", "resident"; "-" where it is unspecified.
std::string StrategyText(const v1::Layout& layout);
std::string UnshardText(const v1::Layout& layout);

// The first characters of a fingerprint, enough to tell plans apart by eye.
std::string ShortFingerprint(const std::string& fingerprint);

// "unknown", "1,024 bytes (estimated)".
std::string ActivationsText(const v1::Forecast& forecast);

}  // namespace tessera

#endif  // TESSERA_CLIENT_PLAN_TABLE_H_
