// One history: a coordinator, its members and its operators from the first request until every job
// has ended, with what goes wrong on the way.
//
//   HistoryResult result = RunHistory({.seed = 7});
//   if (result.violation.has_value()) ... result.trace ...
//
// The same options make the same history.
#ifndef TESSERA_TESTS_SIMULATION_HISTORY_H_
#define TESSERA_TESTS_SIMULATION_HISTORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tests/simulation/checker.h"
#include "tests/simulation/facade.h"
#include "tests/simulation/plan.h"

namespace tessera::simulation {

struct HistoryOptions {
  uint64_t seed = 0;
  PlanOptions plan;
  // Changes what was drawn. Null: as it is.
  std::function<void(Plan&)> change = nullptr;
  // Faults that a test plants: null and false are none.
  std::function<std::unique_ptr<Facade>(Coordinator*)> make_facade = nullptr;
  bool forgets_tags = false;
  bool starts_twice = false;
  // Of the coordinator's disk.
  bool forgets_on_restart = false;
  // Lines of what happened last that are kept.
  size_t trace = 0;
};

struct HistoryResult {
  std::optional<Violation> violation;
  std::string trace;
  std::map<v1::JobState, int64_t> ends;
  int64_t recoveries = 0;
  int64_t restarts = 0;  // of the coordinator
};

HistoryResult RunHistory(const HistoryOptions& options);

// Histories of `count` seeds from `first`, until one goes wrong: what to print, or "".
struct Totals {
  std::map<v1::JobState, int64_t> ends;
  int64_t recoveries = 0;
  int64_t restarts = 0;
};
std::string RunHistories(HistoryOptions options, uint64_t first, int64_t count, Totals* totals);

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_HISTORY_H_
