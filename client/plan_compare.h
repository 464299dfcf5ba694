// Two plans side by side, with the difference.
//
//   std::cout << CompareTable({"a.json", plan_a}, {"b.json", plan_b});
//
// Thread-safety: pure functions.
#ifndef TESSERA_CLIENT_PLAN_COMPARE_H_
#define TESSERA_CLIENT_PLAN_COMPARE_H_

#include <string>

#include "tessera/v1/plan_service.pb.h"

namespace tessera {

struct ComparedPlan {
  std::string source;  // the file
  v1::CreatePlanResponse plan;
};

// At most 80 columns. Figures of ranks and hosts are those of the largest; a difference is what B
// has more than A.
std::string CompareTable(const ComparedPlan& a, const ComparedPlan& b);

// One document: {"a": {...}, "b": {...}, "difference": {...}}; 64-bit figures are strings, and
// difference has those that are numbers in both.
std::string CompareJson(const ComparedPlan& a, const ComparedPlan& b);

// A page that needs no network.
std::string ComparePage(const ComparedPlan& a, const ComparedPlan& b);

}  // namespace tessera

#endif  // TESSERA_CLIENT_PLAN_COMPARE_H_
