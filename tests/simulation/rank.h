// A simulated rank: one process of a host that trains by the protocol of membership_service.proto.
//
//   joins, fills its shards, meets the others, says where it goes on (RankReady), and from
//   StartStep on computes, votes, commits; reports; leaves with OK.
//   A peer is gone, or did not come: Broken, and it waits for its agent's next handoff; a job that
//   cannot recover it leaves with the error.
//   Its stream breaks: it computes on and joins again with the same incarnation.
//
// What it has done lies in its RankMemory, which its agent holds and which outlives it.
#ifndef TESSERA_TESTS_SIMULATION_RANK_H_
#define TESSERA_TESTS_SIMULATION_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/simulation/base.h"
#include "tests/simulation/collective.h"
#include "tests/simulation/server.h"

namespace tessera::simulation {

// What a memory has to be after `step`.
uint64_t ValueAfter(int64_t step);

// What the agent hands over: AgentHello and the files.
struct Handoff {
  std::string job;
  int64_t generation = 0;
  int rank = 0;
  int world_size = 0;
  std::string host;
  std::string run;
  bool recover = false;
  bool resumes = false;  // from the run's newest checkpoint, if there is one
  int64_t steps = 0;
  int64_t checkpoint_every = 0;
  bool can_recover = false;
  absl::Duration collective_timeout;
  absl::Duration wait_for_handoff;
  std::shared_ptr<RankMemory> memory;
  std::shared_ptr<Collective> collective;
};

class Rank : public Process {
 public:
  struct Options {
    absl::Duration least_compute = absl::Milliseconds(20);
    absl::Duration most_compute = absl::Milliseconds(120);
    // A fault of its own: it does a step again that its memory has.
    bool forgets_tags = false;
  };
  // `exited`: called once, when its process ends by itself.
  Rank(Base* base, Server* server, Options options, std::string incarnation, Handoff handoff,
       std::function<void(int exit_code)> exited);

  void Start();
  // The next generation's; the process goes on.
  void Take(Handoff handoff);
  void Kill();
  // The next time that it fills its shards or computes, its step thread stands still for ever; the
  // process heartbeats on. (Behind that nobody need wait for it, and nobody can tell.)
  void GetStuck() { sticks_ = true; }
  // It ends with an error of its own.
  void Crash(const absl::Status& error);
  // What the agent says that the job came to.
  void JobEnded();

  const std::string& incarnation() const { return incarnation_; }
  const Handoff& handoff() const { return at_; }

 private:
  enum class State { kJoining, kPreparing, kReady, kRunning, kWaiting, kLeaving };

  // Does nothing where the rank has meanwhile gone on to another generation.
  Events::Action InGeneration(Events::Action action);
  // Likewise, where it may get stuck.
  Events::Action Computing(Events::Action action);
  void Connect(bool rejoin);
  void OnMessage(const v1::AttendResponse& message);
  void OnEnd(const absl::Status& status);
  void HeartbeatLater();
  void Enter();
  void Meet(Events::Action all_there, Events::Action released, bool for_ever = false);
  void DecideStep();
  void GetReady();
  void Begin(int64_t step);
  void CastVote(int64_t step);
  void Finish(int64_t step);
  void Apply(int64_t step);
  void AfterStep(int64_t step);
  bool SaveIsDue(int64_t step) const;
  void Report(int64_t step, int tries);
  void OnBroken(int rank, const absl::Status& why);
  void Leave(const absl::Status& status, std::optional<int> blamed);
  void SendLeave();
  void Exit(int code);
  std::string name() const;

  Server* server_;
  Options options_;
  std::string incarnation_;
  Handoff at_;
  std::function<void(int)> exited_;
  State state_ = State::kJoining;
  std::shared_ptr<Stream> stream_;
  int64_t heartbeats_of_ = 0;  // number of the stream
  absl::Duration heartbeat_;
  absl::Duration back_off_;
  bool welcome_ = false;  // in this generation
  bool sticks_ = false;
  bool stuck_ = false;
  bool drain_ = false;
  int64_t step_ = 0;  // committed
  std::optional<v1::Leave> leave_;
  std::optional<v1::Broken> broken_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_RANK_H_
