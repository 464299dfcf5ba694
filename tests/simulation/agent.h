// A simulated host's agent: starts the ranks that FormHost gives it, holds their memory, tells how
// their processes end, and rejoins when its stream breaks. With it its ranks and memory go.
#ifndef TESSERA_TESTS_SIMULATION_AGENT_H_
#define TESSERA_TESTS_SIMULATION_AGENT_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/base.h"
#include "tests/simulation/collective.h"
#include "tests/simulation/rank.h"
#include "tests/simulation/server.h"

namespace tessera::simulation {

// What the agents of a simulation share.
struct Cluster {
  Base* base = nullptr;
  Server* server = nullptr;
  Rank::Options rank;
  int64_t processes = 0;  // started so far
  // A fault of the agents': they start a rank that lives a second time.
  bool starts_twice = false;

  std::shared_ptr<Collective> CollectiveOf(const std::string& job, int64_t generation,
                                           int world_size);

 private:
  std::map<std::pair<std::string, int64_t>, std::weak_ptr<Collective>> collectives_;
};

class Agent : public Process {
 public:
  struct Options {
    std::string host;
    std::string job;  // that it is bound to
    int local_workers = 1;
    absl::Duration gives_up = absl::Minutes(5);  // without a coordinator
  };
  // `exited`: called once, when it ends by itself.
  Agent(Cluster* cluster, Options options, std::function<void()> exited);

  void Start() { Connect(); }
  void Kill();
  // Stops it and its ranks, and lets them go on.
  void Freeze();
  void Thaw();

  const Options& options() const { return options_; }
  const std::string& incarnation() const { return incarnation_; }
  // The ranks whose processes live.
  std::vector<std::shared_ptr<Rank>> ranks() const;
  // Kills one as kill -9 does.
  void KillRank(int rank);

 private:
  void Connect();
  void OnMessage(const v1::AttendResponse& message);
  void OnEnd(const absl::Status& status);
  void HeartbeatLater();
  void Form(const v1::FormHost& form);
  void FormAgain(const v1::FormHost& form);
  Handoff HandoffOf(const v1::FormHost& form, int rank);
  void StartRank(Handoff handoff);
  void RankExited(int rank, const std::string& incarnation, int exit_code, int signal);
  void Tell(v1::AttendRequest message);
  void DropRanks();
  void Leave();
  void Exit();

  Cluster* cluster_;
  Options options_;
  std::function<void()> exited_;
  std::string incarnation_;
  std::shared_ptr<Stream> stream_;
  int64_t stream_number_ = 0;
  bool welcome_ = false;  // of this stream
  bool ending_ = false;   // its job has ended: it goes
  bool leaving_ = false;
  absl::Duration heartbeat_;
  absl::Duration back_off_;
  absl::Time heard_;
  std::string job_;  // that it serves
  std::string run_;
  int64_t generation_ = 0;
  std::map<int, std::shared_ptr<Rank>> ranks_;
  std::vector<std::shared_ptr<Rank>> forgotten_;  // with starts_twice
  std::map<int, std::shared_ptr<RankMemory>> memories_;
  std::deque<v1::AttendRequest> untold_;  // since the stream broke
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_AGENT_H_
