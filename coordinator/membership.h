// Who is there: hosts and ranks, their incarnations and leases, and which generation of which job
// they serve.
//
//   Membership members({});
//   const MemberId agent = members.AddHost(join_host, lease);
//   const int64_t generation = members.Form("gpt", {agent}, /*world_size=*/2, lease);
//   TESSERA_ASSIGN_OR_RETURN(const MemberId rank, members.AddRank(join_rank, lease));
//   members.Advance(clock.Now());
//   for (MemberId lost : members.Expired()) ...
//
// Time. Leases and deadlines count steady time: it goes on with the clock, but where two calls of
// Advance lie further apart than `pause`, this process was itself stopped and the gap counts as one
// tick. So the coordinator's own pause expires nobody's lease and no deadline. A lease is therefore
// noticed up to two ticks late.
//
// A generation is one membership of a job: its hosts, each with the same number of ranks, which are
// consecutive. Numbers of a job name only grow, also over jobs that take the name again, so
// that a late worker of an old one is refused.
//
// A member is one attended stream. It stays until Remove, or until its job ends (End) or, a rank,
// its generation (EndGeneration) and it is let go.
//
// Pure: no lock, log or I/O; the caller locks.
#ifndef TESSERA_COORDINATOR_MEMBERSHIP_H_
#define TESSERA_COORDINATOR_MEMBERSHIP_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tessera/v1/job.pb.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {

using MemberId = int64_t;  // never 0, never used twice

struct HostMember {
  MemberId id = 0;
  std::string name;
  int local_workers = 0;
  std::string bound_job;  // "": from the pool
  std::string job;        // that it serves; "": it waits
  std::string program;    // "": the workloads of its own build
  std::string incarnation;
  int64_t pid = 0;
  absl::Duration lease;
  absl::Time heard;
};

struct RankMember {
  enum class State { kMissing, kJoined, kReady, kDone, kGone };
  MemberId id = 0;  // 0: not joined yet, or gone
  // It joined an earlier process of the coordinator, in which it reached `state`, and this one not
  // yet.
  bool away = false;
  State state = State::kMissing;
  std::string incarnation;
  int64_t pid = 0;
  int64_t measured_bytes = 0;
  absl::Duration lease;
  absl::Time heard;
};

struct Generation {
  struct Host {
    MemberId id = 0;  // 0: gone
    std::string name;
    std::string incarnation;
    bool away = false;  // as a rank's
  };
  int64_t number = 0;
  bool live = true;
  std::vector<Host> hosts;        // those of its ranks, in rank order
  std::vector<RankMember> ranks;  // by rank

  int local_world_size() const { return static_cast<int>(ranks.size() / hosts.size()); }
  int HostIndexOf(int rank) const { return rank / local_world_size(); }
  const Host& HostOf(int rank) const { return hosts[HostIndexOf(rank)]; }

  int CountAtLeast(RankMember::State state) const;  // kDone counts as kReady, kGone as nothing
  // Whether all have. Looks on from the rank that it lacked the last time: asked after each of n
  // joins it takes n looks and not n^2.
  bool AllAtLeast(RankMember::State state) const;
  // "ranks 0, 2-3": those that have not reached `state`.
  std::string Missing(RankMember::State state) const;
  // "host a" or "hosts a, b": those of these ranks.
  std::string MissingOn(RankMember::State state) const;

 private:
  mutable std::array<size_t, 5> lacked_ = {};  // by state
};

// Which rank of which job a member is.
struct RankId {
  std::string job;
  int rank = 0;
};

class Membership {
 public:
  struct Options {
    absl::Duration tick = absl::Milliseconds(100);
    absl::Duration pause = absl::Seconds(1);
  };
  explicit Membership(Options options) : options_(options) {}

  // Moves steady time to `now` of the clock; call it every tick. The first call sets the start.
  absl::Time Advance(absl::Time now);
  absl::Time now() const { return now_; }

  MemberId AddHost(const v1::JoinHost& join, absl::Duration lease);
  // Hosts that serve no job: bound to `job`, or of the pool. Oldest first.
  std::vector<MemberId> Waiting(const std::string& job) const;
  std::vector<MemberId> Pool() const { return Waiting(""); }
  // A host stops waiting and serves `job`.
  void Reserve(MemberId host, const std::string& job);

  // Begins a generation of the hosts' job: ranks 0 .. world_size-1 are missing, as many on each
  // host. The hosts' leases become at least `lease`.
  int64_t Form(const std::string& job, const std::vector<MemberId>& hosts, int world_size,
               absl::Duration lease);
  // NOT_FOUND: no such rank. FAILED_PRECONDITION (STALE_GENERATION): not the live generation.
  // ABORTED (RANK_TAKEN): another process has, or had, the rank.
  absl::StatusOr<MemberId> AddRank(const v1::JoinRank& join, absl::Duration lease);
  // Whether a message is of a rank of the live generation. FAILED_PRECONDITION (STALE_GENERATION):
  // it is not.
  absl::Status CheckRank(const std::string& job, int64_t generation, int rank,
                         const std::string& incarnation) const;
  absl::Status CheckGeneration(const std::string& job, int64_t generation) const;

  void SetState(const RankId& rank, RankMember::State state);
  void SetMeasuredBytes(const RankId& rank, int64_t measured_bytes);

  // Null where there is none.
  const HostMember* FindHost(MemberId id) const;
  std::optional<RankId> FindRank(MemberId id) const;
  const Generation* FindGeneration(const std::string& job) const;
  // The hosts that serve or will serve `job`, and its ranks that are there; the hosts first.
  std::vector<MemberId> MembersOf(const std::string& job) const;

  void Heard(MemberId id);
  // Members whose lease has ended; hosts first. They stay members until removed.
  std::vector<MemberId> Expired() const;
  // True where the host of a rank of a live generation has been silent for half its lease or more:
  // then its silent ranks are not to blame.
  bool HostIsSilent(const RankId& rank) const;

  // The member's stream is over; its rank is kGone unless it was kDone.
  void Remove(MemberId id);
  // The job's generation is over and another will follow: its ranks are let go, its hosts stay.
  void EndGeneration(const std::string& job);
  // The job is over: all its members, and hosts waiting for it, are let go.
  void End(const std::string& job);
  // Drops what is known of an ended generation, but for its number.
  void Forget(const std::string& job);

  // Of an earlier process of the coordinator (coordinator_restore.cc). Its live members are away
  // until they are attached: a host by Reattach, a rank by AddRank with `rejoin`.
  void Restore(const std::string& job, Generation generation);
  // Who is away, is gone.
  void NobodyIsAway(const std::string& job);
  // The newest generation of the name; 0: there was none.
  int64_t LastGeneration(const std::string& job) const;
  void SetLastGeneration(const std::string& job, int64_t number);
  // The member's stream is not the one that it has now: it is away.
  void Detach(MemberId id);
  MemberId Reattach(const std::string& job, int host, const v1::JoinHost& join,
                    absl::Duration lease);
  // Of a stream that is no member's.
  MemberId NewId() { return ++last_id_; }

 private:
  RankMember* Find(const RankId& rank);

  Options options_;
  absl::Time last_clock_ = absl::InfinitePast();
  absl::Time now_;
  MemberId last_id_ = 0;
  std::map<MemberId, HostMember> hosts_;
  std::map<MemberId, RankId> ranks_;
  std::map<std::string, Generation> generations_;
  std::map<std::string, int64_t> last_generation_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MEMBERSHIP_H_
