// What must hold in every history, and the truth that it is held against.
//
//   checker.Fail(Invariant::kOneOwner, "...");      the first violation is kept
//   if (checker.violation().has_value()) ...
//
// Not thread-safe.
#ifndef TESSERA_TESTS_SIMULATION_CHECKER_H_
#define TESSERA_TESTS_SIMULATION_CHECKER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera::simulation {

enum class Invariant {
  kOneOwner,         // at most one live process is a rank
  kGenerationsGrow,  // of a job name, and each is formed once
  kEveryJobEnds,     // once the faults stop, each job ends in bounded time
  kNothingLost,      // a committed step stays, unless its host was lost
  kNothingTwice,     // every step changes every rank's memory once
  kRequestsKept,     // an acknowledged request is not forgotten and acts once
  kRealCulprit,      // a FAILED job names somebody who did go wrong
  kEndIsLast,        // a member of an ended generation hears its end and no more
  kNothingLeaks,     // the coordinator lets go of streams that are over
};
absl::string_view Name(Invariant invariant);

struct Violation {
  Invariant invariant;
  std::string what;
};

// A member's stream, as the coordinator uses it.
struct MemberView {
  std::string host;
  std::string job;         // of an agent: that it serves
  int64_t generation = 0;  // likewise
  int rank = -1;           // -1: an agent
  std::string incarnation;
  bool ended = false;   // was told of its job's end, or of its generation's
  bool closed = false;  // by the coordinator
};

// What became of the steps of one job.
struct RunTruth {
  int64_t generation = 0;  // the newest that has begun
  int64_t committed = 0;
  int64_t checkpoint = 0;
};

class Checker {
 public:
  explicit Checker(std::function<absl::Time()> now) : now_(std::move(now)) {}

  void Fail(Invariant invariant, std::string what);
  const std::optional<Violation>& violation() const { return violation_; }

  // Members, at the coordinator's end of their streams.
  void Sent(const std::shared_ptr<MemberView>& view, const v1::AttendResponse& message);
  void Accepted(const std::shared_ptr<MemberView>& view);
  void Over(const std::shared_ptr<MemberView>& view);
  void Reported(const v1::ReportStatsRequest& request);

  // Steps.
  RunTruth& run(const std::string& name) { return runs_[name]; }
  // The ranks of a generation go on after `step`; recover: over the memory that they had.
  void Began(const std::string& run, const std::string& job, int64_t generation, bool recover,
             bool resumes, int64_t step);
  void Committed(const std::string& run, int64_t generation, int64_t step);

  // Faults that may be blamed, and that explain why memory is gone.
  void RankFault(const std::string& job, int rank) { rank_faults_.insert({job, rank}); }
  void HostFault(const std::string& host) { host_faults_[host] = now_(); }
  // A generation was ended so that the job could grow.
  void Resized(const std::string& job) { resized_.insert(job); }

  // The coordinator ended while its disk was full: what it could not keep, and did not acknowledge,
  // may be gone: jobs that ran meanwhile begin again.
  void MayForget() {
    forgot_ = true;
    jobs_.clear();
    formed_.clear();
    ended_.clear();
  }
  // A job as an operator sees it.
  void Saw(const v1::Job& job);

 private:
  void SentForm(const v1::FormHost& form);
  void CheckCulprit(const v1::Job& job);
  bool HostsWereLost(const std::string& job) const;

  struct Formed {
    std::set<std::string> hosts;
    absl::Time time;
  };

  std::function<absl::Time()> now_;
  std::optional<Violation> violation_;
  bool forgot_ = false;
  std::map<std::pair<std::string, int>, std::shared_ptr<MemberView>> owners_;
  std::map<std::string, std::map<int64_t, std::string>> formed_;  // job -> generation -> what
  std::map<std::string, Formed> hosts_of_;                        // of the newest generation
  std::map<std::string, Formed> hosts_began_;                     // of the newest that began
  std::map<std::string, int64_t> ended_;                          // newest generation that ended
  std::map<std::string, RunTruth> runs_;
  std::set<std::pair<std::string, int>> rank_faults_;
  std::map<std::string, absl::Time> host_faults_;
  std::set<std::string> resized_;
  std::map<std::string, v1::Job> jobs_;  // as last seen
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_CHECKER_H_
