// The operators of a simulation: they ask for jobs, cancel and drain them, ask again where no
// answer came, and hold the coordinator to what it has acknowledged.
#ifndef TESSERA_TESTS_SIMULATION_PEOPLE_H_
#define TESSERA_TESTS_SIMULATION_PEOPLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/base.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/server.h"

namespace tessera::simulation {

class People {
 public:
  People(Base* base, Server* server) : base_(base), server_(server) {}

  void Ask(const PlannedJobRequest& asked);
  // Looks at every job that was acknowledged.
  void Look();
  // Every request was answered, and every job has ended.
  bool AllEnded();
  std::string Unfinished();

  // How jobs ended, by state.
  std::map<v1::JobState, int64_t> Ends() const;
  const std::map<std::string, v1::Job>& jobs() const { return seen_; }

 private:
  using Answered = std::function<void(const v1::Job&)>;
  using Act = std::function<absl::StatusOr<v1::Job>(Facade&)>;

  // Until there is an answer.
  void Insist(const std::string& what, Act act, Answered answered);
  void Created(const PlannedJobRequest& asked, const std::string& id, const v1::Job& job);
  void Cancel(const std::string& name, const std::string& id, bool again);
  void Drain(const std::string& name, const std::string& id, bool again);
  void Repeat(const std::string& what, Act act, const v1::Job& first);
  std::string NextId() { return absl::StrCat("request-", ++last_request_); }

  Base* base_;
  Server* server_;
  int64_t last_request_ = 0;
  int64_t unanswered_ = 0;
  std::map<std::string, std::set<std::string>> lives_;  // by name, creation times that were seen
  std::map<std::string, int64_t> asked_;                // by name, how many jobs were asked for
  std::map<std::string, std::string> acknowledged_;     // by name, creation time of the newest
  std::map<std::string, std::string> cancelled_;        // likewise, of what was cancelled
  std::map<std::string, std::string> drained_;
  std::map<std::string, v1::Job> seen_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_PEOPLE_H_
