// Who is to blame when a generation breaks. One death reaches the coordinator as several messages,
// on several streams and in any order: the dead rank's stream breaks, its peers leave and name it,
// the agent reports how the process ended. The verdict waits a short grace for them and then takes
// the best, not the first.
//
//   Verdict verdict({.grace = absl::Milliseconds(300)});
//   verdict.RankBroke(1, "node-a", now);
//   verdict.RankLeft(0, "node-a", absl::UnavailableError("rank 1 is gone"), /*blamed=*/1, now);
//   if (auto blame = verdict.Decide(later)) ...   rank 1
//
// From the best evidence to the weakest:
//   1. the host: its agent's stream broke, its lease ended, or it left. Its ranks die with it, so
//      it needs no grace;
//   2. the agent saw the rank's process end badly (signal or exit code), or before it had joined;
//   3. another rank left and blamed it;
//   4. its stream broke without leave;
//   5. its lease ended;
//   6. it left with an error of its own, or without having finished.
// A rank that can go no further but keeps its process (RankBroken) says as much as one that left.
// Equal evidence goes to the rank that most others blame, then to who waited in vain itself
// (DEADLINE_EXCEEDED), then to what came first. A rank that left
// blaming another is a victim: how its process ended does not count. If the blamed rank left with
// an error of its own, that error is the reason.
//
// Pure; times are the caller's.
#ifndef TESSERA_COORDINATOR_VERDICT_H_
#define TESSERA_COORDINATOR_VERDICT_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/job.h"

namespace tessera {

class Verdict {
 public:
  struct Options {
    // How long evidence is collected after the first.
    absl::Duration grace = absl::Milliseconds(300);
  };
  explicit Verdict(Options options) : options_(options) {}

  // `why`: what happened to the host's agent, e.g. "its agent (pid 7) is gone". Ignored as a
  // consequence if that agent had already reported a process that ended badly.
  void HostLost(absl::string_view host, absl::string_view why, absl::Time now);
  // The agent left. blamed_rank: whom it holds responsible.
  void HostLeft(absl::string_view host, const absl::Status& status, std::optional<int> blamed_rank,
                absl::Time now);
  // The agent saw the process end. Both 0: a clean exit, which is wrong only before Done(rank).
  // joined: whether the rank had joined the job; if not, its end is a bad one in any case.
  void RankExited(int rank, absl::string_view host, int exit_code, int signal, absl::Time now,
                  bool joined = true);
  // The rank left, before its work was done or with an error. `host`: of the rank that it blames,
  // or its own.
  void RankLeft(int rank, absl::string_view host, const absl::Status& status,
                std::optional<int> blamed_rank, absl::Time now);
  // The rank has left its collectives and waits for the next generation: as RankLeft.
  void RankBroken(int rank, absl::string_view host, const absl::Status& status,
                  std::optional<int> blamed_rank, absl::Time now);
  void RankBroke(int rank, absl::string_view host, absl::Time now);
  void RankLeaseEnded(int rank, absl::string_view host, absl::Duration lease, absl::Time now);
  // The rank has left with OK: what happened to its process does not matter any more.
  void Done(int rank);

  // Whether the rank has said that it is RankBroken.
  bool IsBroken(int rank) const { return broken_.count(rank) != 0; }
  // Nobody: too early, or nothing (left) against anybody.
  std::optional<Blame> Decide(absl::Time now) const;

 private:
  enum Kind { kHost, kExit, kBlamed, kBroke, kLease, kLeft };
  struct Evidence {
    Kind kind;
    std::optional<int> rank;
    absl::StatusCode code;
    std::string reason;
    bool finished_early = false;
  };

  void Add(Evidence evidence, absl::Time now);
  bool Counts(const Evidence& evidence) const;
  int Accusations(const Evidence& evidence) const;

  Options options_;
  std::vector<Evidence> evidence_;  // in order of arrival
  std::optional<absl::Time> first_;
  std::set<int> done_;
  std::set<int> broken_;
  std::set<int> victims_;                   // ranks that left blaming another
  std::map<int, int> accusations_;          // by the rank that is blamed
  std::map<int, absl::Status> own_errors_;  // of ranks that left blaming nobody
  std::set<std::string> saw_bad_exit_;      // hosts whose agent saw one
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_VERDICT_H_
